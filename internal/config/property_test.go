package config_test

import (
	"errors"
	"math/big"
	"testing"

	"pgregory.net/rapid"

	"stoker.dev/stoker/internal/config"
)

// TestSharesAreRoundedDown compares with whole numbers: p% of n for p in hundredths.
func TestSharesAreRoundedDown(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hundredths := rapid.IntRange(0, 10_000).Draw(t, "hundredths of a percent")
		n := rapid.IntRange(0, 20_000).Draw(t, "n")
		text := big.NewRat(int64(hundredths), 100).FloatString(2) + "%"
		var a config.Amount
		if err := a.UnmarshalText([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if got, want := a.Of(n), n*hundredths/10_000; got != want {
			t.Fatalf("%s of %d = %d, want %d", text, n, got, want)
		}
		var again config.Amount
		if err := again.UnmarshalText([]byte(a.String())); err != nil || again != a {
			t.Fatalf("%s read again is %v, %v", a, again, err)
		}
	})
}

func TestAShareIsNotRoundedDownTwice(t *testing.T) {
	// 10,000 times 0.57 in binary is 5699.999999999999.
	if got := config.Percent(0.57).Of(10_000); got != 57 {
		t.Errorf("0.57%% of 10000 = %d, want 57", got)
	}
}

func TestANumberIsItself(t *testing.T) {
	var a config.Amount
	if err := a.UnmarshalText([]byte("3")); err != nil {
		t.Fatal(err)
	}
	if got := a.Of(1); got != 3 {
		t.Errorf("3 of 1 = %d, want 3", got)
	}
	if err := a.UnmarshalText([]byte("-1")); err == nil {
		t.Error("-1 was read as an amount")
	}
}

// FuzzDecode holds for every text: no panic, and every mistake has its file and text.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		"", "name: a", "rooms:\n- {name: a, grace: 5}\n", "a: &a [*a]", "? [a]\n: b", "labels: {<<: {a: b}}", "later: *x", "---\n---\n", "name: !!binary aGk=",
		"rooms: &r\n- name: &n hall\n  beds: 1\nlabels: {*n : x}\n", "\xff\xfe", "name: \"\\x00\"", "!!map {name: a}", "name: |\n  x\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var s site
		s.Extra = &extra{}
		err := config.Decode("f.yaml", data, &s)
		if err == nil {
			return
		}
		es, ok := errors.AsType[config.Errors](err)
		if !ok || len(es) == 0 {
			t.Fatalf("err = %#v, want Errors", err)
		}
		for _, e := range es {
			if e.File != "f.yaml" || e.Text == "" {
				t.Fatalf("mistake without file or text: %#v", e)
			}
		}
	})
}
