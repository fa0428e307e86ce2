package series

import "testing"

func TestWriting(t *testing.T) {
	var w Writer
	w.Family("empty", "Nothing.")
	w.Family("a", "Help.")
	w.Begin()
	w.Value("1")
	w.Begin()
	w.Label("x", "a\"b\\c\nd\xff")
	w.Some("y", "")
	w.Some("z", "2")
	w.Value("2.5")
	const want = "# HELP a Help.\n# TYPE a gauge\na 1\na{x=\"a\\\"b\\\\c\\nd\uFFFD\",z=\"2\"} 2.5\n"
	if got := string(w.Page()); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
