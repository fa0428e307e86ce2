// Command stoker is the service, the demo and the command line of Stoker. Each
// sub-command is in a file of its own.
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
		fmt.Fprintln(os.Stderr, "stoker:", err)
	}
	os.Exit(exitCode(err)) //nolint:gocritic // stop only restores signal handling
}

// run is main without the process: a test can call it.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	root := &cobra.Command{
		Use:           "stoker",
		Short:         "Keeps a GPU training fleet hot and heals it",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version(),
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return exitError{2, err} })
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.AddCommand(controllerCommand(), demoCommand(), explainCommand(), incidentsCommand(), manifestsCommand(), rulesCommand(), statusCommand(), versionCommand())
	return root.ExecuteContext(ctx)
}

// An exitError ends the program with a status of its own: 1 error, 2 usage or
// configuration, 3 not found.
type exitError struct {
	code int
	err  error
}

func (e exitError) Error() string { return e.err.Error() }
func (e exitError) Unwrap() error { return e.err }

func exitCode(err error) int {
	if err == nil {
		return 0
	}
	if e, ok := errors.AsType[exitError](err); ok {
		return e.code
	}
	return 1
}
