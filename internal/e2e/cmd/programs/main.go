// Command programs builds the programs that the end-to-end tests run and prints
// where they lie, so that a slow cold build can be had, and timed, before them.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"text/tabwriter"
	"time"

	"stoker.dev/stoker/internal/e2e/programs"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "programs:", err)
		os.Exit(1) //nolint:gocritic // stop only restores signal handling
	}
}

// run builds into the cache; the paths go to stdout, progress to stderr.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("programs", flag.ContinueOnError)
	flags.SetOutput(stderr)
	stoker := flags.Bool("stoker", false, "also build stoker and stoker-collector of this checkout")
	if err := flags.Parse(args); err != nil {
		return err
	}
	start := time.Now()
	p, err := programs.Build(ctx, stderr)
	if err != nil {
		return err
	}
	tw := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0) // keeps an error of stdout for Flush
	for _, line := range [][2]string{
		{"etcd", p.Etcd},
		{"kube-apiserver", p.APIServer},
		{"kube-controller-manager", p.ControllerManager},
		{"kube-scheduler", p.Scheduler},
		{"kwok", p.Kwok},
		{"alertmanager", p.Alertmanager},
	} {
		_, _ = fmt.Fprintf(tw, "%s\t%s\n", line[0], line[1])
	}
	if *stoker {
		s, err := programs.BuildStoker(ctx, stderr)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(tw, "stoker\t%s\nstoker-collector\t%s\n", s.Service, s.Collector)
	}
	_, _ = fmt.Fprintf(stderr, "all programs ready after %.0f s\n", time.Since(start).Seconds())
	return tw.Flush()
}
