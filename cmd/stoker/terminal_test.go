package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// A screen is what was written to a terminal.
type screen struct {
	tty *os.File

	mu   sync.Mutex
	text bytes.Buffer
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// openTerminal opens one, and reads what is written to it.
func openTerminal(t *testing.T) *screen {
	t.Helper()
	head, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(head.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(head.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	s := &screen{}
	if s.tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	if !term.IsTerminal(int(s.tty.Fd())) {
		t.Fatal("what was opened is no terminal")
	}
	var reads sync.WaitGroup
	reads.Go(func() {
		buf := make([]byte, 4096)
		for {
			k, err := head.Read(buf)
			s.mu.Lock()
			s.text.Write(buf[:k])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	})
	t.Cleanup(func() {
		_ = s.tty.Close() // then the reader ends
		reads.Wait()
		_ = head.Close()
	})
	return s
}

// TestTheDemoOnATerminal holds what a newcomer sees: how far it is, in a line that is gone
// before the next event and at the end, and the report; and the same lines as on a pipe.
func TestTheDemoOnATerminal(t *testing.T) {
	s := openTerminal(t)
	var pipe bytes.Buffer
	if err := run(t.Context(), []string{"demo", "--for", "90s", "--speed", "max"}, &pipe, s.tty); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), []string{"demo", "--for", "90s", "--speed", "max", "--listen", "127.0.0.1:0"}, s.tty, s.tty); err != nil {
		t.Fatal(err)
	}
	await(t, s, "goodput")
	got := strings.ReplaceAll(s.String(), "\r\n", "\n")
	first, got, _ := strings.Cut(got, "\n")
	if !strings.HasPrefix(first, "console at http://127.0.0.1:") {
		t.Errorf("it begins with %q, want where the console is", first)
	}
	if !strings.Contains(got, "00:01:00 of 00:01:30 (67 %)\r\033[K") {
		t.Errorf("no progress is shown that is taken away again:\n%q", got)
	}
	if kept := seen(got); kept != pipe.String() {
		t.Errorf("what stays on the terminal is\n%q\nand on a pipe\n%q", kept, pipe.String())
	}
}

// TestTheDemoStoppedOnATerminal holds that Ctrl-C is how a demo without an end ends, with
// its report, and that it leaves no half line, also where it had an end.
func TestTheDemoStoppedOnATerminal(t *testing.T) {
	for name, tc := range map[string]struct {
		length string
		ok     bool // it ends well, with its report
	}{
		"without an end": {"0", true},
		"before its end": {"2h", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := openTerminal(t)
			ctx, cancel := context.WithCancelCause(t.Context())
			go func() {
				defer cancel(errors.New("interrupt"))
				for start := time.Now(); !strings.Contains(s.String(), "00:01:00") && time.Since(start) < time.Minute; {
					time.Sleep(time.Millisecond)
				}
			}()
			if err := run(ctx, []string{"demo", "--for", tc.length, "--speed", "600"}, s.tty, s.tty); (err == nil) != tc.ok {
				t.Errorf("it ends with %v", err)
			}
			if _, err := fmt.Fprintln(s.tty, "the end"); err != nil {
				t.Fatal(err)
			}
			await(t, s, "the end")
			got := seen(strings.ReplaceAll(s.String(), "\r\n", "\n"))
			if strings.Contains(got, "trouble") || strings.Contains(got, "goodput") != tc.ok {
				t.Errorf("what stays on the terminal is\n%s", got)
			}
			for line := range strings.Lines(got) {
				if strings.HasPrefix(line, "00:") && !strings.HasPrefix(line[8:], "  ") {
					t.Errorf("half a line stays: %q", line)
				}
			}
		})
	}
}

// seen is what stays on a terminal of what was written.
func seen(text string) string {
	var kept strings.Builder
	for line := range strings.Lines(text) {
		if i := strings.LastIndex(line, "\033[K"); i >= 0 {
			line = line[i+len("\033[K"):]
		}
		kept.WriteString(line)
	}
	return kept.String()
}

func await(t *testing.T, s *screen, text string) {
	t.Helper()
	for start := time.Now(); time.Since(start) < time.Minute; time.Sleep(time.Millisecond) {
		if strings.Contains(s.String(), text) {
			return
		}
	}
	t.Fatalf("%q is not written within a minute:\n%s", text, s.String())
}
