//go:build browser

package console

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// root of the repository, as seen from this package.
const root = "../../.."

// patience bounds what takes a moment, on a machine that has other things to do too.
const patience = time.Minute

// A gallery is the console on made-up states.
type gallery struct {
	url  string
	stop func()
}

// bin is the gallery as a program.
var bin string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "gallery-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	bin = filepath.Join(dir, "gallery")
	build := exec.Command("go", "build", "-o", bin, "./internal/server/gallery")
	build.Dir, build.Stderr = root, os.Stderr
	code := 1
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build the gallery:", err)
	} else {
		code = m.Run()
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

func openGallery(t *testing.T) *gallery {
	t.Helper()
	cmd := exec.Command(bin)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	g := &gallery{stop: sync.OnceFunc(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the gallery ended with %v", err)
		}
	})}
	t.Cleanup(g.stop)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the gallery says no address: %v", err)
	}
	g.url = strings.TrimSpace(line)
	return g
}

// A tab is one page of the browser and what it complained of.
type tab struct {
	ctx   context.Context
	close func()

	mu       sync.Mutex
	problems []string
}

func openBrowser(t *testing.T) context.Context {
	t.Helper()
	opts := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath("/usr/bin/chromium"), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true), chromedp.WSURLReadTimeout(patience))
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), opts...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("start chromium: %v", err)
	}
	return ctx
}

func openTab(t *testing.T, browser context.Context) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser)
	t.Cleanup(cancel)
	b := &tab{ctx: ctx, close: cancel}
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("open a tab: %v", err)
	}
	err := chromedp.Listen(ctx, func(ev any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch e := ev.(type) {
		case *runtime.EventExceptionThrown:
			b.problems = append(b.problems, fmt.Sprintf("%+v", e.ExceptionDetails))
		case *runtime.EventConsoleAPICalled:
			b.problems = append(b.problems, fmt.Sprintf("console.%s: %+v", e.Type, e.Args))
		case *cdplog.EventEntryAdded:
			b.problems = append(b.problems, fmt.Sprintf("%s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	call(t, b, cdplog.Enable, cdp.Empty{})
	return b
}

// do runs actions, within a bound.
func (b *tab) do(t *testing.T, actions ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		t.Fatalf("%v; the page complained of %q", err, b.complaints())
	}
}

func (b *tab) complaints() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.problems
}

// value runs one action that has a value.
func value[T any](t *testing.T, b *tab, action chromedp.Action[T]) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, action)
	if err != nil {
		t.Fatalf("%v; the page complained of %q", err, b.complaints())
	}
	return v
}

// call runs one command of the protocol.
func call[P, R any](t *testing.T, b *tab, cmd cdp.Command[P, R], params P) {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if _, err := chromedp.Call(ctx, cmd, params); err != nil {
		t.Fatal(err)
	}
}

func eval[T any](t *testing.T, b *tab, script string) T {
	t.Helper()
	return value(t, b, chromedp.Evaluate[T](script))
}

// await asks until the script says true.
func await(t *testing.T, b *tab, what, script string) {
	t.Helper()
	for start := time.Now(); time.Since(start) < patience; time.Sleep(50 * time.Millisecond) {
		if eval[bool](t, b, script) {
			return
		}
	}
	t.Fatalf("%s: not within %v; the page says %q and complained of %q", what, patience, eval[string](t, b, "document.body.innerText.slice(0, 2000)"), b.complaints())
}

const live = "document.documentElement.dataset.stream === 'live'"

// faint finds texts whose contrast with what is behind them is under 4.5 to 1.
const faint = `(() => {
  const parse = (s) => { const m = s.match(/[\d.]+/g).map(Number); return { rgb: m.slice(0, 3), a: m[3] ?? 1 }; };
  const light = (c) => { const [r, g, b] = c.map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const found = [];
  for (const e of document.querySelectorAll('body *')) {
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
    if (!e.checkVisibility() || e.closest('thead')) continue;
    let back = e, ground = null;
    while (back && !ground) { const c = parse(getComputedStyle(back).backgroundColor); if (c.a === 1) ground = c.rgb; back = back.parentElement; }
    const [a, b] = [light(parse(getComputedStyle(e).color).rgb), light(ground ?? [255, 255, 255])].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) found.push(e.textContent.trim().slice(0, 40) + ' ' + ratio.toFixed(2));
  }
  return found.join('; ');
})()`

// TestEveryPageIsClean opens every scene on a desk and on a telephone, light and dark:
// nothing is complained of, nothing is wider than the screen, every text can be read.
func TestEveryPageIsClean(t *testing.T) {
	g, browser := openGallery(t), openBrowser(t)
	shots := filepath.Join(root, "bin", "console")
	if err := os.MkdirAll(shots, 0o755); err != nil {
		t.Fatal(err)
	}
	b := openTab(t, browser)
	b.do(t, chromedp.Navigate(g.url+"person/"))
	incident := eval[string](t, b, "document.querySelector('#waiting a').getAttribute('href')")
	b.close()
	for _, page := range []string{"calm/", "person/", "dry/", "late/", "many/", "moving/", "empty/", "many/incidents", "person/nodes/gpu-a-02", "person/" + incident, "fleet/nodes", "crowd/nodes", "late/nodes", "dry/nodes", "empty/nodes"} {
		b := openTab(t, browser)
		for _, size := range [][2]int64{{1366, 768}, {390, 844}} {
			b.do(t, chromedp.EmulateViewport(size[0], size[1]), chromedp.Navigate(g.url+page))
			if strings.HasSuffix(page, "/") || strings.HasSuffix(page, "/nodes") {
				await(t, b, page+" follows", live)
			}
			for _, scheme := range []string{"light", "dark"} {
				name := fmt.Sprintf("%s-%d-%s", strings.Trim(strings.ReplaceAll(page, "/", "-"), "-"), size[0], scheme)
				call(t, b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
				shot := value(t, b, chromedp.CaptureScreenshot())
				if err := os.WriteFile(filepath.Join(shots, name+".png"), shot, 0o644); err != nil {
					t.Fatal(err)
				}
				if wide := eval[int64](t, b, "document.documentElement.scrollWidth"); wide > size[0] {
					t.Errorf("%s is %d px wide", name, wide)
				}
				if bad := eval[string](t, b, faint); bad != "" {
					t.Errorf("%s: hard to read: %s", name, bad)
				}
			}
			if page == "person/" && size[0] == 1366 {
				if low := eval[string](t, b, "[...document.querySelectorAll('h2')].filter((h) => h.getBoundingClientRect().bottom > innerHeight).map((h) => h.textContent).join(', ')"); low != "" {
					t.Errorf("%s is below the fold", low)
				}
			}
		}
		if got := b.complaints(); len(got) > 0 {
			t.Errorf("%s complains: %q", page, got)
		}
		b.close() // a browser has six connections to one server, and each page holds one
	}
}

// TestThePageFollows holds that what changes is seen without a reload, and that the focus
// stays; and that neither happens while the reader has paused it.
func TestThePageFollows(t *testing.T) {
	g, browser := openGallery(t), openBrowser(t)
	b := openTab(t, browser)
	const state = "document.querySelector('#incidents-now tbody').innerText"
	b.do(t, chromedp.Navigate(g.url+"moving/"))
	await(t, b, "it follows", live)
	eval[bool](t, b, "window.mark = true; document.querySelector('#incidents-now a').focus(); true")
	first := eval[string](t, b, state)
	await(t, b, "a step is seen", fmt.Sprintf("%s !== %q", state, first))
	if !eval[bool](t, b, "window.mark === true && document.activeElement.matches('#incidents-now a')") {
		t.Error("the page was loaded anew, or the focus was lost")
	}
	b.do(t, chromedp.Click(chromedp.CSS("#pause")))
	await(t, b, "it pauses", "document.documentElement.dataset.stream === 'paused' && document.getElementById('stream').textContent.includes('Paused')")
	first = eval[string](t, b, state)
	time.Sleep(5 * time.Second)
	if again := eval[string](t, b, state); again != first {
		t.Errorf("paused, and %q became %q", first, again)
	}
	b.do(t, chromedp.Click(chromedp.CSS("#pause")))
	await(t, b, "it follows again", live+fmt.Sprintf(" && %s !== %q", state, first))
	if got := b.complaints(); len(got) > 0 {
		t.Errorf("the page complains: %q", got)
	}
}

// TestAPageWithoutNewsSaysSo cuts the stream: what was shown stays, and its age is told.
func TestAPageWithoutNewsSaysSo(t *testing.T) {
	g, browser := openGallery(t), openBrowser(t)
	const stale = "document.documentElement.dataset.stream === 'stale' && document.getElementById('stream').textContent.includes('No word from Stoker for')"
	const grey = "getComputedStyle(document.getElementById('banner')).backgroundColor === 'rgb(107, 114, 128)'"

	never := openTab(t, browser)
	call(t, never, network.Enable, network.EnableParams{})
	call(t, never, network.SetBlockedURLs, network.SetBlockedURLsParams{URLPatterns: []*network.BlockPattern{{URLPattern: "*://*:*/*/events?*", Block: true}}})
	never.do(t, chromedp.Navigate(g.url+"person/"))
	await(t, never, "a page that was never followed says so", stale+" && "+grey)
	if !eval[bool](t, never, "document.querySelectorAll('#waiting li').length === 3 && document.querySelector('#waiting time').textContent !== ''") {
		t.Error("without a stream the page is not whole")
	}

	b := openTab(t, browser)
	b.do(t, chromedp.Navigate(g.url+"person/"))
	await(t, b, "it follows", live)
	g.stop()
	await(t, b, "a page whose service has gone says so", stale+" && "+grey)
	if !eval[bool](t, b, "document.querySelectorAll('#waiting li').length === 3") {
		t.Error("what was shown is gone")
	}
}

// TestThePageNeedsNoScript reads the page as a browser shows it that runs none.
func TestThePageNeedsNoScript(t *testing.T) {
	g, browser := openGallery(t), openBrowser(t)
	b := openTab(t, browser)
	call(t, b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	b.do(t, chromedp.Navigate(g.url+"person/"))
	html := value(t, b, chromedp.OuterHTML(chromedp.CSS("html")))
	for _, want := range []string{"load the page again for what is new", ">29 min</time>", "! held", "Last actions", `id="pause" type="button" hidden`} {
		if !strings.Contains(html, want) {
			t.Errorf("%q is not on the page", want)
		}
	}
	if strings.Contains(html, "data-stream=") {
		t.Error("a script has run")
	}
}
