package main

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"stoker.dev/stoker/internal/app"
	"stoker.dev/stoker/internal/config"
)

func controllerCommand() *cobra.Command {
	var o app.ControllerOptions
	var level slog.Level
	var format string
	cmd := &cobra.Command{
		Use:   "controller",
		Short: "Run the service on Kubernetes",
		Args:  usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			options := &slog.HandlerOptions{Level: level}
			var handler slog.Handler
			switch format {
			case "json":
				handler = slog.NewJSONHandler(cmd.ErrOrStderr(), options)
			case "text":
				handler = slog.NewTextHandler(cmd.ErrOrStderr(), options)
			default:
				return exitError{2, fmt.Errorf("log format %q is not json or text", format)}
			}
			err := app.Controller(cmd.Context(), slog.New(handler), o)
			if _, bad := errors.AsType[config.Errors](err); bad {
				return exitError{2, err}
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.ConfigFile, "config", "", "configuration file; without it the shipped one, a dry run")
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig; without it the account of the pod")
	f.StringVar(&o.Namespace, "namespace", "stoker-system", "our own namespace: incidents, lease, repairs")
	f.StringVar(&o.Listen, "listen", "", "address to listen on, instead of the configuration's")
	f.StringVar(&o.Identity, "identity", "", "name of this replica in the election; made up when empty")
	f.StringVar(&o.Advertise, "advertise", "", "host:port at which the other replicas reach this one; $POD_IP and our port when empty")
	f.TextVar(&level, "log-level", slog.LevelInfo, "debug, info, warn or error")
	f.StringVar(&format, "log-format", "json", "json or text")
	return cmd
}
