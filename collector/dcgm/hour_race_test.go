//go:build race

package dcgm_test

// hour is in polls: an hour of them takes a minute under the race detector.
const hour = 720
