package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// A Percent is a share of a whole, written as in 10%. Its value is in percent, from 0
// to 100.
type Percent float64

// UnmarshalText reads a number and a percent sign.
func (p *Percent) UnmarshalText(b []byte) error {
	s, ok := strings.CutSuffix(string(b), "%")
	if !ok {
		return fmt.Errorf("%s needs a percent sign, as in 10%%", short(string(b)))
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(f) || f < 0 || f > 100 {
		return fmt.Errorf("%s is not a share from 0%% to 100%%", short(string(b)))
	}
	*p = Percent(f)
	return nil
}

// MarshalText writes what UnmarshalText reads.
func (p Percent) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// String is the share as people write it.
func (p Percent) String() string { return strconv.FormatFloat(float64(p), 'f', -1, 64) + "%" }

// Of is the share of n whole things, rounded down.
func (p Percent) Of(n int) int {
	return int(math.Floor(float64(n)*float64(p)/100 + 1e-9)) // 0.57% of 10,000 is 56.99999999999999
}

// An Amount is a number of things or a share of all of them: 3 or 10%. Its zero value
// is none.
type Amount struct {
	Count   int     // when not Shared
	Percent Percent // when Shared
	Shared  bool
}

// UnmarshalText reads a whole number, or a share with a percent sign.
func (a *Amount) UnmarshalText(b []byte) error {
	if strings.HasSuffix(string(b), "%") {
		*a = Amount{Shared: true}
		return a.Percent.UnmarshalText(b)
	}
	n, err := strconv.Atoi(string(b))
	if err != nil || n < 0 {
		return fmt.Errorf("%s is neither a number, such as 3, nor a share, such as 10%%", short(string(b)))
	}
	if n > maxCount {
		return errors.New("is more than a million")
	}
	*a = Amount{Count: n}
	return nil
}

const maxCount = 1_000_000

// MarshalText writes what UnmarshalText reads.
func (a Amount) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// String is the amount as people write it.
func (a Amount) String() string {
	if a.Shared {
		return a.Percent.String()
	}
	return strconv.Itoa(a.Count)
}

// Of is the amount out of n things, rounded down; a number is itself, whatever n.
func (a Amount) Of(n int) int {
	if a.Shared {
		return a.Percent.Of(n)
	}
	return a.Count
}
