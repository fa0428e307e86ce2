//go:build cgo && linux

package dcgm

// Handle is what the library calls the engine, for its test functions.
func (e *Engine) Handle() uintptr { return uintptr(e.h) }

// CodeOf returns the library's result behind an error.
func CodeOf(err error) Result { return codeOf(err) }
