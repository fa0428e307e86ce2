// Command stoker-collector is the agent on a node with GPUs: it reads telemetry from
// its sources and shows it to Prometheus. Nothing of the service is linked in.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "stoker-collector:", err)
	}
	os.Exit(exitCode(err)) //nolint:gocritic // stop only restores signal handling
}

// run is main without the process: a test can call it.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var s settings
	cmd := &cobra.Command{
		Use:           "stoker-collector",
		Short:         "Shows a node's GPUs to Prometheus",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version(),
		RunE: func(*cobra.Command, []string) error {
			if err := s.validate(); err != nil {
				return usageError{err}
			}
			return serve(ctx, s, stderr)
		},
	}
	s.flags(cmd.Flags())
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	cmd.SetArgs(asWritten(args, func(name string) bool { return cmd.Flags().Lookup(name) != nil }))
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	return cmd.ExecuteContext(ctx)
}

// A usageError is about the command line. The program then ends with status 2.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func exitCode(err error) int {
	if err == nil {
		return 0
	}
	if _, ok := errors.AsType[usageError](err); ok {
		return 2
	}
	return 1
}
