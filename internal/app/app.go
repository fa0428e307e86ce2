// Package app puts the rooms together: which store, which cluster, which telemetry,
// and the life cycle of the whole. It is the only package that knows them all, and it
// decides nothing itself. A test can start all of it on port 0.
package app
