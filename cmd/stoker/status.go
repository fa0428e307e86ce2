package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/internal/server"
)

func statusCommand() *cobra.Command {
	var c client
	var output string
	var check bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say whether Stoker can be believed, what waits and what is broken",
		Long: `Say whether Stoker can be believed, what waits and what is broken.
With --check the exit status is 0 only when the service is healthy: it leads or is led, its facts are
fresh, the Watchdog alert is not late, and nothing waits for a person. Incidents that are being healed
are its work and not a fault.`,
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return exitError{2, fmt.Errorf("output %q is not table or json", output)}
			}
			body, err := c.get(cmd.Context(), "/api/v1/status")
			if err != nil {
				return err
			}
			var st server.Status
			if err := json.Unmarshal(body, &st); err != nil {
				return fmt.Errorf("read the answer: %w", err)
			}
			if output == "json" {
				_, err = cmd.OutOrStdout().Write(body)
			} else {
				err = writeStatus(cmd.OutOrStdout(), st)
			}
			if err != nil {
				return fmt.Errorf("print: %w", err)
			}
			if check && !st.Healthy {
				return errors.New("not healthy")
			}
			return nil
		},
	}
	c.flags(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table or json; json is what the API answers")
	cmd.Flags().BoolVar(&check, "check", false, "exit with 0 only when it is healthy")
	return cmd
}

// statusWaits is how many waits are listed; the rest is counted.
const statusWaits = 20

// writeStatus writes the status for people, in lines of 80 columns where names allow it.
func writeStatus(out io.Writer, st server.Status) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	verdict := "healthy"
	switch {
	case len(st.Trouble) > 0:
		verdict = "NOT HEALTHY"
	case !st.Healthy:
		verdict = "WAITS FOR A PERSON"
	}
	fmt.Fprintf(w, "status\t%s at %s\n", verdict, st.At.UTC().Format(time.RFC3339))
	for i, t := range st.Trouble {
		fmt.Fprintf(w, "%s\t%s\n", first(i, "trouble"), cut(t, 66))
	}
	fmt.Fprintf(w, "mode\t%s\n", st.State.Mode)
	switch {
	case st.State.Leader == "":
		fmt.Fprintf(w, "leader\tnobody leads; %s has answered\n", st.State.Identity)
	case st.State.Leading:
		fmt.Fprintf(w, "leader\t%s, which has answered\n", st.State.Leader)
	default:
		fmt.Fprintf(w, "leader\t%s; %s has answered\n", st.State.Leader, st.State.Identity)
	}
	for i, s := range st.Sources {
		late := ""
		if s.Late {
			late = ", late"
		}
		fmt.Fprintf(w, "%s\t%s %s old%s\n", first(i, "sources"), s.Name, ago(st.At, s.At), late)
	}
	fmt.Fprintf(w, "watchdog\t%s\n", watchdog(st))
	fmt.Fprintf(w, "fleet\t%d of %d nodes take work, %d held, telemetry lost on %d; %d GPUs\n",
		st.Fleet.Available, st.Fleet.Nodes, st.Fleet.Held, st.Fleet.TelemetryLost, st.Fleet.GPUs)
	var open []string
	for _, p := range []remedy.Phase{remedy.PhaseOpen, remedy.PhaseActing, remedy.PhaseHeld, remedy.PhaseCancelling} {
		if n := st.Incidents[p]; n > 0 {
			open = append(open, fmt.Sprintf("%d %s", n, p))
		}
	}
	if open == nil {
		open = []string{"none open"}
	}
	fmt.Fprintf(w, "incidents\t%s; %d GPUs hit now, %.1f GPU-h lost in 24 h\n", strings.Join(open, ", "), st.GPUsHit, st.LostGPUHours)
	if err := w.Flush(); err != nil {
		return err
	}
	if len(st.Waiting) == 0 {
		_, err := fmt.Fprintln(out, "\nNothing waits for a person.")
		return err
	}
	fmt.Fprintln(out)
	w = tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "WAITS FOR\tSINCE\tSUBJECT\tSTEP\tGPUS")
	for _, v := range st.Waiting[:min(statusWaits, len(st.Waiting))] {
		who := string(v.For)
		if v.For == server.WaitGate {
			who = "gate " + v.Gate
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\n", cut(who, 21), ago(st.At, v.Since), cut(v.Subject, 24), v.Step, v.GPUs)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if more := len(st.Waiting) - statusWaits; more > 0 {
		fmt.Fprintf(out, "and %d more\n", more)
	}
	return nil
}

func watchdog(st server.Status) string {
	w := st.State.Watchdog
	switch {
	case w.Late && w.Why != "":
		return "LATE: " + cut(w.Why, 60)
	case w.Late:
		return "LATE"
	case !w.Wanted:
		return "none is set up"
	case w.Seen.IsZero():
		return "not seen yet"
	}
	return ago(st.At, w.Seen) + " ago"
}

// first is the title of a list, on its first line.
func first(i int, title string) string {
	if i > 0 {
		return ""
	}
	return title
}

func ago(now, t time.Time) string { return now.Sub(t).Round(time.Second).String() }

// cut shortens a text to n runes.
func cut(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}
