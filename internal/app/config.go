package app

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"time"

	_ "embed" // the configuration that is shipped

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/internal/config"
	"stoker.dev/stoker/internal/loop"
	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/rules"
)

// Default is the configuration that is shipped, as text.
//
//go:embed default.yaml
var Default []byte

// DefaultName is what messages call it.
const DefaultName = "(the shipped configuration)"

// Config is the configuration file: what each part reads of it.
type Config struct {
	Mode           actuator.Mode          `yaml:"mode"`
	Playbooks      []rules.PlaybookConfig `yaml:"playbooks"`
	Evidence       rules.EvidenceConfig   `yaml:"evidence"`
	Gates          actuator.GatesConfig   `yaml:"gates"`
	Server         ServerConfig           `yaml:"server"`
	Telemetry      TelemetryConfig        `yaml:"telemetry"`
	Alertmanager   AlertmanagerConfig     `yaml:"alertmanager"`
	LeaderElection ElectionConfig         `yaml:"leaderElection"`
	Repairs        RepairsConfig          `yaml:"repairs"`
	Failures       FailuresConfig         `yaml:"failures"`
	Every          remedy.Duration        `yaml:"every"` // from one tick to the next; 1s when left out
}

// Validate fills in the defaults.
func (c *Config) Validate(path string) error {
	return positive(path, "every", &c.Every, time.Second)
}

// ServerConfig says where and to whom the service answers.
type ServerConfig struct {
	Listen     string           `yaml:"listen"`
	TokenFile  string           `yaml:"tokenFile"`
	Collectors CollectorsConfig `yaml:"collectors"`
}

// Validate fills in the defaults.
func (c *ServerConfig) Validate(path string) error {
	if c.Listen == "" {
		c.Listen = ":8080"
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return config.Errorf(config.Key(path, "listen"), "%q is not host:port: %v", c.Listen, err)
	}
	return nil
}

// TelemetryConfig says which collectors are scraped into the process.
type TelemetryConfig struct {
	Every  remedy.Duration `yaml:"every"` // from one scrape and evaluation to the next; 10s when left out
	Scrape []ScrapeConfig  `yaml:"scrape"`
}

// Validate fills in the defaults.
func (c *TelemetryConfig) Validate(path string) error {
	return positive(path, "every", &c.Every, 10*time.Second)
}

// ScrapeConfig is one collector.
type ScrapeConfig struct {
	URL string `yaml:"url"`
}

// Validate refuses what cannot be scraped.
func (c *ScrapeConfig) Validate(path string) error {
	u, err := url.Parse(c.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return config.Errorf(config.Key(path, "url"), "%q is not an address to scrape, such as http://10.0.0.7:9400/metrics", c.URL)
	}
	return nil
}

// ElectionConfig times the election of the leader.
type ElectionConfig struct {
	Lease remedy.Duration `yaml:"lease"` // for which a leader that is silent is still believed; 15s when left out
	Renew remedy.Duration `yaml:"renew"` // in which a leader must have renewed it; 10s when left out
	Retry remedy.Duration `yaml:"retry"` // between tries; 2s when left out
}

// Validate fills in the defaults.
func (c *ElectionConfig) Validate(path string) error {
	errs := errors.Join(
		positive(path, "lease", &c.Lease, 15*time.Second),
		positive(path, "renew", &c.Renew, 10*time.Second),
		positive(path, "retry", &c.Retry, 2*time.Second),
	)
	if errs == nil && (c.Lease <= c.Renew || c.Renew <= c.Retry) {
		return config.Errorf(path, "lease %s must be longer than renew %s, and that longer than retry %s", c.Lease, c.Renew, c.Retry)
	}
	return errs
}

// RepairsConfig names the templates of repairs.
type RepairsConfig struct {
	Reboot RepairConfig `yaml:"reboot"`
	Reset  RepairConfig `yaml:"reset"`
}

// FailuresConfig says where the reasons of failed jobs may be read.
type FailuresConfig struct {
	Logs string `yaml:"logs"` // none, asked (jobs that ask for it) or all; none when left out
}

// Values of FailuresConfig.Logs.
const (
	logsNone  = "none"
	logsAsked = "asked"
	logsAll   = "all"
)

// Validate fills in the defaults.
func (c *FailuresConfig) Validate(path string) error {
	if c.Logs == "" {
		c.Logs = logsNone
	}
	if known := []string{logsNone, logsAsked, logsAll}; !slices.Contains(known, c.Logs) {
		return config.Errorf(config.Key(path, "logs"), "%s", config.Unknown("choice", c.Logs, known))
	}
	return nil
}

// RepairConfig is one repair.
type RepairConfig struct {
	Template string `yaml:"template"` // file with a Job; empty: the one that is shipped
}

func positive(path, key string, d *remedy.Duration, zero time.Duration) error {
	if *d == 0 {
		*d = remedy.Duration(zero)
	}
	if *d < 0 {
		return config.Errorf(config.Key(path, key), "%s is negative", *d)
	}
	return nil
}

// ReadConfig reads a configuration file and everything that depends on it; every
// mistake is in the error, with file and line. An empty name is the shipped one.
func ReadConfig(name string) (Config, loop.Config, error) {
	data := Default
	if name == "" {
		name = DefaultName
	} else {
		b, err := os.ReadFile(name)
		if err != nil {
			return Config{}, loop.Config{}, fmt.Errorf("configuration: %w", err)
		}
		data = b
	}
	return parseConfig(name, data)
}

func parseConfig(name string, data []byte) (Config, loop.Config, error) {
	var c Config
	errs := config.Decode(name, data, &c)
	// Playbooks are compiled even so: all mistakes are told at once.
	books, err := rules.Compile(name, rules.Config{Playbooks: c.Playbooks, Evidence: c.Evidence}, actuator.Actions)
	if all := merge(errs, err); all != nil {
		return Config{}, loop.Config{}, all
	}
	books.DryRun = c.Mode == actuator.ModeDryRun
	return c, loop.Config{Playbooks: books}, nil
}

// merge puts the mistakes of two readings of one file in order.
func merge(a, b error) error {
	first, ok1 := errors.AsType[config.Errors](a)
	second, ok2 := errors.AsType[config.Errors](b)
	if a != nil && !ok1 || b != nil && !ok2 {
		return errors.Join(a, b)
	}
	if len(first)+len(second) == 0 {
		return nil
	}
	all := slices.Concat(first, second)
	slices.SortStableFunc(all, func(a, b config.Error) int { return cmp.Or(a.Line-b.Line, a.Col-b.Col) })
	return all
}
