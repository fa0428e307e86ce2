package main

import (
	"encoding/json"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"stoker.dev/stoker/internal/remedy"
)

func incidentsCommand() *cobra.Command {
	var c client
	var output string
	var all, noHeaders bool
	cmd := &cobra.Command{
		Use:   "incidents",
		Short: "List incidents",
		Args:  usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			path := "/api/v1/incidents?state=open"
			if all {
				path = "/api/v1/incidents"
			}
			body, err := c.get(cmd.Context(), path)
			if err != nil {
				return err
			}
			switch output {
			case "json":
				_, err := cmd.OutOrStdout().Write(body)
				return err
			case "table":
			default:
				return exitError{2, fmt.Errorf("output %q is not table or json", output)}
			}
			var list []remedy.Incident
			if err := json.Unmarshal(body, &list); err != nil {
				return fmt.Errorf("read the answer: %w", err)
			}
			if len(list) == 0 {
				fmt.Fprintln(cmd.ErrOrStderr(), "no incidents")
				return nil
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			if !noHeaders {
				fmt.Fprintln(w, "NAME\tCLASS\tSUBJECT\tSINCE\tPHASE\tSTEP\tLOST")
			}
			for _, in := range list {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%.1f GPU-h\n", in.Name, in.Class, in.Subject,
					time.Since(in.Opened).Round(time.Second), in.Phase, in.StepName(), in.Lost())
			}
			return w.Flush()
		},
	}
	c.flags(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table or json; json is what the API answers")
	cmd.Flags().BoolVar(&all, "all", false, "closed ones too")
	cmd.Flags().BoolVar(&noHeaders, "no-headers", false, "leave out the first line")
	return cmd
}
