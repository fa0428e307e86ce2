package main

import (
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"stoker.dev/stoker/internal/app"
)

func demoCommand() *cobra.Command {
	var o app.DemoOptions
	var speed string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show the loop on a simulated fleet, in virtual time",
		Long: `Show the loop on a simulated fleet of 8 nodes with 8 GPUs each: some ten jobs, a GPU that falls off
the bus, a job crash with its storm of XID 45, and lost telemetry. Only the first wants healing.
One line per event; ends by itself with a report.`,
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if speed != "max" {
				v, err := strconv.ParseFloat(speed, 64)
				if err != nil || v <= 0 {
					return exitError{2, fmt.Errorf("speed %q is neither a number above 0 nor max", speed)}
				}
				o.Speed = v
			}
			if o.For <= 0 {
				return exitError{2, fmt.Errorf("for %s is not above 0", o.For)}
			}
			o.Listening = func(a net.Addr) { fmt.Fprintf(cmd.ErrOrStderr(), "console, API and metrics at http://%s\n", a) }
			return app.Demo(cmd.Context(), cmd.OutOrStdout(), o)
		},
	}
	f := cmd.Flags()
	f.DurationVar(&o.For, "for", 2*time.Hour, "how much of the fleet's time is shown")
	f.StringVar(&speed, "speed", "60", "seconds of the fleet's time in one second, or max")
	f.Uint64Var(&o.Seed, "seed", 1, "what everything that is drawn is drawn from")
	f.BoolVar(&o.Off, "off", false, "without Stoker, to compare")
	f.StringVar(&o.Report, "report", "", "file for the report as JSON")
	f.StringVar(&o.Listen, "listen", "", "loopback address for API and metrics, such as 127.0.0.1:8080")
	return cmd
}
