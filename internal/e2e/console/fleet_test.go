//go:build browser

package console

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
)

// press presses a key that writes nothing.
func press(t *testing.T, b *tab, key string, code int64) {
	t.Helper()
	for _, kind := range []input.DispatchKeyEventType{"keyDown", "keyUp"} {
		call(t, b, input.DispatchKeyEvent, input.DispatchKeyEventParams{Type: kind, Key: key, Code: key, WindowsVirtualKeyCode: code})
	}
}

const (
	panel = "[...document.querySelectorAll('.n > div')].filter((d) => d.getBoundingClientRect().width > 100)"
	shown = "[...document.querySelectorAll('.n')].filter((n) => n.checkVisibility()).length"
)

// TestTheGridTellsWhatEachMarkMeans holds that what is behind a node's marks is shown to
// who points at it, tabs to it or touches it, whole and within the window, and that the
// legend narrows the grid, all of it without a script.
func TestTheGridTellsWhatEachMarkMeans(t *testing.T) {
	g, browser := openGallery(t), openBrowser(t)
	for name, size := range map[string][2]int64{"desk": {1366, 768}, "telephone": {390, 844}} {
		t.Run(name, func(t *testing.T) {
			b := openTab(t, browser)
			defer b.close()
			call(t, b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
			b.do(t, chromedp.EmulateViewport(size[0], size[1]), chromedp.Navigate(g.url+"fleet/nodes"))
			if n := eval[int](t, b, panel+".length"); n != 0 {
				t.Errorf("%d panels are open, and nobody has asked", n)
			}
			b.do(t, chromedp.Click(chromedp.CSS(`.n:has(a[href="nodes/gpu-a-02"]) > p`)))
			for _, want := range []string{"gpu-a-02", "GPUs 4–5 idle but held: nlp/notebook-2, team nlp", "GPU 2 faulty (gpu-lost): vision/segment-2, team vision", "gpu-lost, open"} {
				if got := eval[string](t, b, panel+".map((d) => d.innerText).join('|')"); !strings.Contains(got, want) || strings.Contains(got, "|") {
					t.Errorf("after a touch %q is shown, want one panel with %q", got, want)
				}
			}
			if out := eval[bool](t, b, panel+".some((d) => { const r = d.getBoundingClientRect(); return r.left < 0 || r.right > innerWidth || r.bottom > innerHeight + 1; })"); out {
				t.Error("the panel is not within the window")
			}
			shot := value(t, b, chromedp.CaptureScreenshot())
			if err := os.WriteFile(filepath.Join(root, "bin", "console", "panel-"+name+".png"), shot, 0o644); err != nil {
				t.Fatal(err)
			}
			press(t, b, "Tab", 9)
			press(t, b, "Tab", 9)
			if at := eval[string](t, b, "document.activeElement.getAttribute('href')"); !strings.HasPrefix(at, "jobs/") {
				t.Errorf("two tabs from the node's marks is %q, want its first job", at)
			}
			if n := eval[int](t, b, panel+".length"); n != 1 {
				t.Errorf("with the focus within it %d panels are shown, want it alone", n)
			}
			all := eval[int](t, b, shown)
			b.do(t, chromedp.Click(chromedp.CSS("label[for=show-i]")))
			if n := eval[int](t, b, shown); n == 0 || n >= all || !eval[bool](t, b, "[...document.querySelectorAll('.n')].every((n) => n.checkVisibility() === n.classList.contains('i'))") {
				t.Errorf("%d of %d nodes are shown, want those with idle GPUs", n, all)
			}
			press(t, b, "ArrowRight", 39)
			if id := eval[string](t, b, "document.querySelector('[name=show]:checked').id"); id != "show-u" {
				t.Errorf("the next after idle is %s, want unknown", id)
			}
		})
	}
}

// TestTheGridFollows holds that marks change without a reload, that the panel which is
// read stays, and that what the legend shows stays chosen.
func TestTheGridFollows(t *testing.T) {
	g, browser := openGallery(t), openBrowser(t)
	b := openTab(t, browser)
	b.do(t, chromedp.EmulateViewport(1366, 768), chromedp.Navigate(g.url+"fleet/nodes"))
	await(t, b, "it follows", live)
	const node = `.n:has(a[href="nodes/gpu-a-05"])`
	b.do(t, chromedp.Click(chromedp.CSS("label[for=show-e]")), chromedp.Click(chromedp.CSS(node+" > p")))
	marks := fmt.Sprintf("document.querySelector('%s > p').textContent", node)
	was := eval[string](t, b, "window.mark = true; "+marks)
	await(t, b, "a mark changes", fmt.Sprintf("%s !== %q", marks, was))
	if !eval[bool](t, b, "window.mark === true && document.activeElement.matches('.n')") || eval[int](t, b, panel+".length") != 1 {
		t.Error("the page was loaded anew, or what was read is gone")
	}
	if !eval[bool](t, b, "document.getElementById('show-e').checked && document.querySelectorAll('.n.u:not(.e)').length > 0 && ![...document.querySelectorAll('.n:not(.e)')].some((n) => n.checkVisibility())") {
		t.Error("what the legend shows is not chosen any more")
	}
	if got := b.complaints(); len(got) > 0 {
		t.Errorf("the page complains: %q", got)
	}
}

// TestAThousandNodesAreDrawn holds that a browser shows 8,000 GPUs without effort.
func TestAThousandNodesAreDrawn(t *testing.T) {
	g, browser := openGallery(t), openBrowser(t)
	b := openTab(t, browser)
	b.do(t, chromedp.EmulateViewport(1366, 768), chromedp.Navigate(g.url+"crowd/nodes"))
	await(t, b, "it follows", live)
	if n := eval[int](t, b, "document.querySelectorAll('#fleet i').length"); n != 8000 {
		t.Errorf("%d GPUs are drawn, want 8,000", n)
	}
	paint := eval[float64](t, b, "performance.getEntriesByName('first-contentful-paint')[0].startTime")
	kB := eval[float64](t, b, "performance.getEntriesByType('navigation')[0].transferSize / 1000")
	high := eval[float64](t, b, "document.documentElement.scrollHeight / innerHeight")
	t.Logf("first paint after %.0f ms, %.0f kB, %.1f screens high", paint, kB, high)
	if paint > 20_000 || kB > 500 || high > 12 {
		t.Error("want at most 20 s on a busy machine, 500 kB and 12 screens")
	}
}
