package dcgm

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
)

// statusNames are the words for what the engine says of a GPU.
var statusNames = []struct {
	status EntityStatus
	name   string
}{
	{EntityStatusDetached, "detached"},
	{EntityStatusDisabled, "disabled"},
	{EntityStatusFake, "fake"},
	{EntityStatusInaccessible, "inaccessible"},
	{EntityStatusLost, "lost"},
	{EntityStatusOk, "ok"},
	{EntityStatusUnknown, "unknown"},
	{EntityStatusUnsupported, "unsupported"},
}

// AppendPage appends what the source tells of itself in Prometheus' text format. It never
// waits for the engine.
func (s *Source) AppendPage(dst []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	row := func(v uint64, name string, labels ...string) {
		dst = append(dst, name...)
		for i := 0; i+1 < len(labels); i += 2 {
			dst = append(dst, "{,"[min(i, 1)])
			dst = append(append(dst, labels[i]...), '=')
			dst = strconv.AppendQuote(dst, labels[i+1])
		}
		if len(labels) > 0 {
			dst = append(dst, '}')
		}
		dst = append(strconv.AppendUint(append(dst, ' '), v, 10), '\n')
	}
	head := func(name, typ, help string) {
		dst = append(append(append(append(dst, "# HELP "...), name...), ' '), help...)
		dst = append(append(append(append(dst, "\n# TYPE "...), name...), ' '), typ...)
		dst = append(dst, '\n')
	}
	one := func(b bool) uint64 {
		if b {
			return 1
		}
		return 0
	}
	head("stoker_dcgm_connects_total", "counter", "Connections that were made to an engine.")
	row(s.self.connects, "stoker_dcgm_connects_total")
	head("stoker_dcgm_event_gap_seconds_total", "counter", "For how long XIDs may be lost that only the engine knew, since it has gone: from the last reading of it to the first of the next.")
	dst = append(strconv.AppendFloat(append(dst, "stoker_dcgm_event_gap_seconds_total "...), s.self.gap.Seconds(), 'f', -1, 64), '\n')
	if len(s.self.absent) > 0 {
		head("stoker_dcgm_field_absent", "gauge", "Of how many GPUs and instances a field has no value, and why.")
		for _, a := range slices.SortedFunc(maps.Keys(s.self.absent), func(x, y absence) int {
			return cmp.Or(cmp.Compare(x.field, y.field), cmp.Compare(x.reason, y.reason))
		}) {
			row(uint64(max(0, s.self.absent[a])), "stoker_dcgm_field_absent", "field", a.field, "reason", a.reason)
		}
	}
	head("stoker_dcgm_gpus", "gauge", "GPUs that the engine has or has had in this boot, by what it says of them.")
	for _, st := range statusNames {
		row(uint64(max(0, s.self.gpus[st.status])), "stoker_dcgm_gpus", "status", st.name)
	}
	file, cluster := s.self.hasFile, s.o.ConfigMap != nil && s.o.ConfigMap.why.Load() != nil
	if file || cluster {
		head("stoker_dcgm_list_up", "gauge", "Whether a list of fields is in force as it was meant; why not, if not.")
	}
	if cluster {
		why := *s.o.ConfigMap.why.Load()
		row(one(why == ""), "stoker_dcgm_list_up", "list", "configmap", "reason", why)
	}
	if file {
		row(one(s.self.file == ""), "stoker_dcgm_list_up", "list", "file", "reason", s.self.file)
	}
	if len(s.self.profiling) > 0 {
		head("stoker_dcgm_profiling", "gauge", "Always 1; how it stands with the profiling fields of the GPU.")
		for _, id := range slices.Sorted(maps.Keys(s.self.profiling)) {
			row(1, "stoker_dcgm_profiling", "gpu", strconv.Itoa(int(id)), "state", string(s.self.profiling[id]))
		}
	}
	head("stoker_dcgm_profiling_rewatches_total", "counter", "How often profiling was watched anew, because it told nothing that can be believed.")
	row(s.self.rewatches, "stoker_dcgm_profiling_rewatches_total")
	if len(s.self.ages) > 0 {
		head("stoker_dcgm_sample_age_seconds", "gauge", "Age of the GPU's newest value at the last reading, by the engine's clock.")
		for _, id := range slices.Sorted(maps.Keys(s.self.ages)) {
			dst = append(dst, "stoker_dcgm_sample_age_seconds{gpu=\""+strconv.Itoa(int(id))+"\"} "...)
			dst = append(strconv.AppendFloat(dst, s.self.ages[id].Seconds(), 'f', 3, 64), '\n')
		}
	}
	head("stoker_dcgm_state", "gauge", "1 for how far the source has come.")
	for _, st := range states {
		row(one(s.self.state == st), "stoker_dcgm_state", "state", string(st))
	}
	head("stoker_dcgm_up", "gauge", "Whether there is a connection to an engine.")
	row(one(s.self.connected), "stoker_dcgm_up")
	if s.self.engine != "" {
		head("stoker_dcgm_version_info", "gauge", "Always 1; the versions of the library and of the engine.")
		row(1, "stoker_dcgm_version_info", "engine", s.self.engine, "library", s.self.library)
	}
	return dst
}
