package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"stoker.dev/stoker/internal/app"
)

func rulesCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "rules", Short: "Work on playbooks and configuration"}
	cmd.AddCommand(&cobra.Command{
		Use:   "check FILE...",
		Short: "Say what is wrong with configuration files: every mistake, with file and line",
		Args:  usage(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			var errs []error
			for _, name := range args {
				c, l, err := app.ReadConfig(name)
				if err != nil {
					errs = append(errs, err)
					continue
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s: right: %d playbooks, mode %s\n", name, len(l.Playbooks.List), c.Mode)
			}
			if err := errors.Join(errs...); err != nil {
				return exitError{2, err}
			}
			return nil
		},
	})
	return cmd
}
