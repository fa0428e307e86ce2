package actuator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"stoker.dev/stoker/internal/config"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

var recipeSpec = Spec{
	Info: remedy.ActionInfo{
		Name: "recipe", Doc: "Gives each job that the incident has stopped the environment that its own recipe names, as far as the playbook allows the names.",
		Scope: remedy.ScopeJobs, Effect: remedy.EffectAsk, Within: 5 * time.Minute,
	},
	Params: func() config.Validator { return &recipeParams{} },
	New:    func(d Deps) Action { return recipe{d.Cluster} },
}

// Bounds of a recipe.
const (
	maxRecipe      = 16  // values
	maxRecipeValue = 256 // bytes of one value
)

type recipeParams struct {
	Name  string   `yaml:"name" json:"name" doc:"which recipe of the job: that of its annotation stoker.dev/on-NAME"`
	Allow []string `yaml:"allow" json:"allow" doc:"names of environment variables that recipes may set; a recipe with another one is refused whole"`
}

var (
	recipeName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,30}$`)
	envName    = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_]{0,61}[A-Za-z0-9])?$`)
	// unsafeEnv are names that decide which program runs, or with which code.
	unsafeEnv = regexp.MustCompile(`^(LD_.*|PATH|HOME|SHELL|IFS|ENV|BASH_ENV|PYTHON(PATH|HOME|STARTUP|INSPECT|BREAKPOINT|WARNINGS)|PERL5(LIB|OPT)|NODE_OPTIONS|JAVA_TOOL_OPTIONS|KUBE.*|NVIDIA_.*|CUDA_INJECTION.*|NCCL_(NET|TUNER|PROFILER|ENV)?_?PLUGIN|.*_PROXY|.*_proxy)$`)
)

// Validate refuses names that no recipe may set, whoever lists them.
func (p *recipeParams) Validate(path string) error {
	var errs []error
	if !recipeName.MatchString(p.Name) {
		errs = append(errs, config.Errorf(config.Key(path, "name"), "%q is not the name of a recipe, such as oom", p.Name))
	}
	if len(p.Allow) == 0 {
		errs = append(errs, config.Errorf(config.Key(path, "allow"), "is missing: a recipe could set nothing"))
	}
	for i, name := range p.Allow {
		at := config.Item(config.Key(path, "allow"), i)
		switch {
		case !envName.MatchString(name):
			errs = append(errs, config.Errorf(at, "%q is not a name that can be set: letters, digits and _, a letter first", name))
		case unsafeEnv.MatchString(name):
			errs = append(errs, config.Errorf(at, "%s decides what a program runs; no recipe may set it", name))
		}
	}
	return errors.Join(errs...)
}

// recipe writes the values beside what start writes: as annotations of the pod template,
// which pods read through an env with a fieldRef. It stays when the job has been started:
// without it the job would only fail again.
type recipe struct{ jobs Jobs }

func (a recipe) Start(ctx context.Context, o remedy.Order) (remedy.Receipt, error) {
	p, err := params[recipeParams](o)
	if err != nil {
		return remedy.Receipt{}, err
	}
	j, err := liveJob(ctx, a.jobs, o)
	if err != nil {
		return remedy.Receipt{}, err
	}
	switch {
	case j.RecipeBy == o.Key:
		return remedy.Receipt{Version: j.Version, Found: true, Note: j.Ref.String() + " has " + written(j.Env)}, nil
	case j.Phase.Ended():
		return remedy.Receipt{}, failf(remedy.Gone, "%s has ended (%s)", j.Ref, j.Phase)
	case !by(j.StoppedBy, o.Incident):
		return remedy.Receipt{Version: j.Version, Found: true, Note: j.Ref.String() + " was not stopped by us, and keeps its environment"}, nil
	case !j.Suspended:
		return remedy.Receipt{}, failf(remedy.Yielded, "%s was started by somebody else", j.Ref)
	}
	env, err := readRecipe(j.Recipes[p.Name], p.Allow)
	if err != nil {
		return remedy.Receipt{}, failf(remedy.Rejected, "recipe %s of %s: %w", p.Name, j.Ref, err)
	}
	m, err := a.jobs.SetRecipe(ctx, j, o.Key, env)
	if err != nil {
		return remedy.Receipt{}, fmt.Errorf("recipe %s of %s: %w", p.Name, j.Ref, err)
	}
	return remedy.Receipt{Version: m.Version, Note: j.Ref.String() + " gets " + written(env)}, nil
}

// readRecipe reads NAME=VALUE, comma separated. One name that is not allowed refuses all
// of it: half a recipe is not what its author has tried.
func readRecipe(text string, allow []string) (map[string]string, error) {
	if strings.TrimSpace(text) == "" {
		return nil, errors.New("the job has none")
	}
	env := map[string]string{}
	for part := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		switch {
		case !ok:
			return nil, fmt.Errorf("%q is not NAME=VALUE", name)
		case !slices.Contains(allow, name) || unsafeEnv.MatchString(name) || !envName.MatchString(name):
			return nil, fmt.Errorf("%s is not among the names that the playbook allows", name)
		case len(value) > maxRecipeValue || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }):
			return nil, fmt.Errorf("the value of %s is over %d bytes, or has control characters", name, maxRecipeValue)
		case env[name] != "":
			return nil, fmt.Errorf("%s is there twice", name)
		}
		env[name] = value
	}
	if len(env) > maxRecipe {
		return nil, fmt.Errorf("%d values, and %d is the limit", len(env), maxRecipe)
	}
	return env, nil
}

// written is an environment for people.
func written(env map[string]string) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(env)) {
		out = append(out, name+"="+env[name])
	}
	return list(out)
}

func (recipe) Check(now time.Time, f fleet.Snapshot, o remedy.Order, r remedy.Receipt) (remedy.Outcome, bool) {
	if stale(f, r) {
		return remedy.Outcome{}, false
	}
	j, ok := knownJob(f, o)
	switch {
	case !ok:
		return ended(remedy.Gone, "%s is gone", o.Target.Job)
	case j.Version < r.Version:
		return unfinished(now, o, "the recipe has not been seen on %s", j.Ref)
	case j.RecipeBy == o.Key, r.Found:
		return ended(remedy.Done, "%s", r.Note)
	}
	return ended(remedy.Yielded, "somebody else has changed the environment of %s", j.Ref)
}
