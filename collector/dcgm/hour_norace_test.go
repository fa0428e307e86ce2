//go:build !race

package dcgm_test

// hour is in polls.
const hour = 3600
