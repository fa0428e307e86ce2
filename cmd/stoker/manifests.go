package main

import (
	"github.com/spf13/cobra"

	"stoker.dev/stoker/internal/app"
)

func manifestsCommand() *cobra.Command {
	var namespace, account string
	var readLogs bool
	cmd := &cobra.Command{
		Use:   "manifests",
		Short: "Print what the service needs in a cluster: namespace, account, rights, definitions",
		Long: `Print, as YAML for kubectl apply, what the service needs in a cluster before it runs: its
namespace and account, the definition of incidents, and exactly the rights that its actions declare.`,
		Example: "  stoker manifests | kubectl apply -f -",
		Args:    usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(app.Manifests(namespace, account, readLogs))
			return err
		},
	}
	cmd.Flags().StringVar(&namespace, "namespace", "stoker-system", "our own namespace")
	cmd.Flags().StringVar(&account, "service-account", "stoker", "name of the account and of its roles")
	cmd.Flags().BoolVar(&readLogs, "read-logs", false, "also the right to read containers' logs, for failures.logs in the configuration")
	return cmd
}
