package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"stoker.dev/stoker/internal/app"
)

func demoCommand() *cobra.Command {
	var o app.DemoOptions
	var speed string
	var compare bool
	var seeds int
	var scenario string
	var c app.CompareOptions
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show the loop on a simulated fleet, in virtual time",
		Long: `Show the loop on a simulated fleet of 8 nodes with 8 GPUs each and three teams: a GPU falls off the bus,
a program hangs, a spot node is taken away, a job crashes with a storm of XID 45, a GPU has a memory
error, telemetry is lost, a notebook idles. What wants healing is healed, and nothing else is touched.
One line per event; ends by itself with a report. With --for 0 it goes on until it is stopped.

With --compare, fleets of three teams are run as fast as it goes, half a day each: with Stoker, without
it, and under two policies that are in use. Faults come at the rates of docs/simulation.md, accelerated.`,
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if speed != "max" {
				v, err := strconv.ParseFloat(speed, 64)
				if err != nil || !(v > 0) || math.IsInf(v, 0) {
					return exitError{2, fmt.Errorf("speed %q is neither a number above 0 nor max", speed)}
				}
				o.Speed = v
			}
			switch {
			case o.For < 0:
				return exitError{2, fmt.Errorf("for %s is negative", o.For)}
			case compare && o.For < time.Minute:
				return exitError{2, fmt.Errorf("for %s: runs that are compared take a minute at least", o.For)}
			case seeds < 1 || seeds > 10_000:
				return exitError{2, fmt.Errorf("seeds: %d is not from 1 to 10000", seeds)}
			case c.Nodes < 0 || c.Nodes > 10_000 || c.Jobs < 0 || c.Jobs > 100_000 || !(c.Faults >= 0 && c.Faults <= 100_000):
				return exitError{2, errors.New("nodes are from 1 to 10000, jobs from 1 to 100000, and faults from 0 to 100000 times as often")}
			case !compare && (c.Nodes != 0 || c.Jobs != 0 || c.Faults != 0):
				return exitError{2, errors.New("--nodes, --jobs and --faults want --compare")}
			case seeds > 1 && !compare:
				return exitError{2, errors.New("several seeds want --compare")}
			case compare && (o.Off || o.Listen != ""):
				return exitError{2, errors.New("--compare goes with neither --off nor --listen")}
			case scenario != "" && cmd.Flags().NFlag() > 1:
				return exitError{2, errors.New("--scenario goes with no other flag")}
			case scenario != "":
				return app.Scenario(cmd.Context(), cmd.OutOrStdout(), scenario)
			case compare:
				c.Seed, c.Seeds, c.Report, c.Progress = o.Seed, seeds, o.Report, progress(cmd.ErrOrStderr())
				if cmd.Flags().Changed("for") {
					c.For = o.For
				}
				return app.Compare(cmd.Context(), cmd.OutOrStdout(), c)
			}
			o.Listening = func(a net.Addr) {
				fmt.Fprintf(cmd.ErrOrStderr(), "console at http://%s, the fleet as a grid at http://%[1]s/nodes\n", a)
			}
			o.Terminal = isTerminal(cmd.OutOrStdout())
			err := app.Demo(cmd.Context(), cmd.OutOrStdout(), o)
			if o.For == 0 && cmd.Context().Err() != nil && errors.Is(err, context.Cause(cmd.Context())) {
				err = nil // stopping it is how it ends
			}
			return err
		},
	}
	f := cmd.Flags()
	f.DurationVar(&o.For, "for", 2*time.Hour, "how much of the fleet's time is shown; 0: until it is stopped; with --compare 12h when not given")
	f.StringVar(&speed, "speed", "60", "seconds of the fleet's time in one second, or max")
	f.Uint64Var(&o.Seed, "seed", 1, "what everything that is drawn is drawn from")
	f.BoolVar(&o.Off, "off", false, "without Stoker, to compare")
	f.BoolVar(&compare, "compare", false, "run the same fleets with Stoker, without it, and under policies that are in use")
	f.IntVar(&seeds, "seeds", 1, "how many fleets are compared, beginning with --seed")
	f.IntVar(&c.Nodes, "nodes", 0, "of a fleet that is compared, 8 GPUs each; 8 when not given")
	f.IntVar(&c.Jobs, "jobs", 0, "of a fleet that is compared; 30 for every 8 nodes and 12 hours when not given")
	f.Float64Var(&c.Faults, "faults", 0, "how much more often than their rates faults come in a comparison; 200 when not given")
	f.StringVar(&scenario, "scenario", "", "file with a fleet, what happens to it and what must come of it")
	f.StringVar(&o.Report, "report", "", "file for the report as JSON")
	f.StringVar(&o.Listen, "listen", "", "loopback address for console, API and metrics, such as 127.0.0.1:8080")
	return cmd
}

// progress shows on a terminal how many runs are done, and nothing elsewhere.
func progress(w io.Writer) func(done, all int) {
	if !isTerminal(w) {
		return nil
	}
	var mu sync.Mutex
	most := 0
	return func(done, all int) {
		mu.Lock()
		defer mu.Unlock()
		if most = max(most, done); most == all {
			fmt.Fprint(w, "\r\033[K")
			return
		}
		fmt.Fprintf(w, "\r%d of %d runs", most, all)
	}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
