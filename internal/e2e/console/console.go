// Package console looks at the console with a real browser. Its tests want Debian's
// chromium and are built with the tag browser only: make console runs them.
package console
