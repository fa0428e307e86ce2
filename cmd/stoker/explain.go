package main

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/cobra"
)

func explainCommand() *cobra.Command {
	var c client
	cmd := &cobra.Command{
		Use:     "explain incident/NAME | node/NAME | job/NAMESPACE/NAME",
		Short:   "Say why: evidence, rule, gates, steps, outcome",
		Example: "  stoker explain node/gpu-a-02",
		Args:    usage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			kind, name, ok := strings.Cut(args[0], "/")
			if !ok || name == "" {
				return exitError{2, fmt.Errorf("%q is not KIND/NAME, such as node/gpu-a-02", args[0])}
			}
			var parts []string
			for p := range strings.SplitSeq(name, "/") {
				parts = append(parts, url.PathEscape(p))
			}
			body, err := c.get(cmd.Context(), "/api/v1/explain/"+url.PathEscape(kind)+"/"+strings.Join(parts, "/"))
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(body)
			return err
		},
	}
	c.flags(cmd)
	return cmd
}

// usage makes a mistake in the arguments one of usage: exit status 2.
func usage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return exitError{2, err}
		}
		return nil
	}
}
