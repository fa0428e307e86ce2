// Package fake builds a libdcgm for tests, from C, with the gcc that cgo needs anyway.
// The library has an engine and GPUs of its own in the process that opens it, behaves as
// real engines were measured to, and does what a test asks: lose a GPU, hang, die, tell of
// XIDs late, and so on. Nothing but tests may import it.
package fake
