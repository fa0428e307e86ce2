package config

import (
	"encoding"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// A place is where something stands in a file, from 1.
type place struct{ line, col int }

func at(n *yaml.Node) place { return place{n.Line, n.Column} }

// A decoder reads one node and remembers where each path stands.
type decoder struct {
	errs   Errors
	places map[string]place
	bad    map[string]bool     // paths whose value could not be read
	within map[*yaml.Node]bool // nodes on the way down, against aliases of themselves
	visits int
	limit  *Error // that was passed: nothing more is read
}

func (d *decoder) fail(path string, p place, format string, args ...any) {
	if len(d.errs) >= maxFound {
		d.limit = &Error{Line: p.line, Col: p.col, Path: path, Text: "more mistakes than are looked for"}
	}
	if d.limit != nil {
		return
	}
	d.errs = append(d.errs, Error{Line: p.line, Col: p.col, Path: path, Text: fmt.Sprintf(format, args...)})
}

// wrong is fail for a value that could not be read.
func (d *decoder) wrong(path string, p place, format string, args ...any) {
	d.bad[path] = true
	d.fail(path, p, format, args...)
}

var (
	nodeType     = reflect.TypeFor[yaml.Node]()
	durationType = reflect.TypeFor[time.Duration]()
	textType     = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// value reads n into v. The place p is what people call the place of the value: its
// key where it is a mapping or list, itself otherwise.
func (d *decoder) value(path string, p place, n *yaml.Node, v reflect.Value, depth int) {
	if d.limit != nil {
		return
	}
	d.places[path] = p
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	d.visits++
	past := ""
	switch {
	case d.within[n]:
		past = "the alias stands for something that it is part of"
	case depth > maxDepth:
		past = "nested too deep"
	case d.visits > maxVisits:
		past = "more values, aliases included, than one configuration may have"
	}
	if past != "" {
		d.limit = &Error{Line: p.line, Col: p.col, Path: path, Text: past}
		return
	}
	d.within[n] = true
	defer delete(d.within, n)

	if v.Type() == nodeType {
		v.Set(reflect.ValueOf(*n))
		return
	}
	if v.Kind() == reflect.Pointer {
		if v.Type().Elem() == nodeType {
			v.Set(reflect.ValueOf(n))
			return
		}
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		d.into(path, p, n, v.Elem(), depth)
		return
	}
	d.into(path, p, n, v, depth)
}

// into reads a node that is no alias into a value that is no pointer.
func (d *decoder) into(path string, p place, n *yaml.Node, v reflect.Value, depth int) {
	if n.Kind == yaml.ScalarNode && n.Tag != "" && !strings.HasPrefix(n.ShortTag(), "!!") {
		d.wrong(path, p, "has the tag %s; tags are not used here", n.Tag)
		return
	}
	text := reflect.PointerTo(v.Type()).Implements(textType)
	switch {
	case text || v.Type() == durationType:
		if s, ok := d.scalar(path, p, n); ok {
			d.text(path, p, s, v, text)
		}
	case v.Kind() == reflect.Struct:
		d.structure(path, p, n, v, depth)
	case v.Kind() == reflect.Map && v.Type().Key().Kind() == reflect.String:
		d.dict(path, p, n, v, depth)
	case v.Kind() == reflect.Slice:
		d.list(path, p, n, v, depth)
	default:
		d.plain(path, p, n, v)
	}
}

// scalar is the text of a value that is neither a mapping nor a list nor missing.
func (d *decoder) scalar(path string, p place, n *yaml.Node) (string, bool) {
	switch {
	case n.Kind != yaml.ScalarNode:
		d.wrong(path, p, "needs one value, not %s", describe(n))
	case n.ShortTag() == "!!null":
		d.wrong(path, p, "has no value")
	default:
		return n.Value, true
	}
	return "", false
}

// text reads a value of a type that reads itself, or a duration.
func (d *decoder) text(path string, p place, s string, v reflect.Value, itself bool) {
	var err error
	if itself {
		u, _ := v.Addr().Interface().(encoding.TextUnmarshaler)
		err = u.UnmarshalText([]byte(s))
	} else {
		var dur time.Duration
		dur, err = time.ParseDuration(s)
		v.SetInt(int64(dur))
	}
	if err != nil {
		d.wrong(path, p, "%s", durationText(s, err))
	}
}

// durationText says what package time has against a duration as people would say it.
// Other errors keep their text.
func durationText(s string, err error) string {
	switch t := err.Error(); {
	case strings.HasPrefix(t, "time: missing unit in duration"):
		return fmt.Sprintf("%s needs a unit, such as %sm", short(s), short(s))
	case strings.HasPrefix(t, "time: unknown unit"):
		return short(s) + " has a unit that is not known; units are s, m and h, as in 90s or 1h30m"
	case strings.HasPrefix(t, "time: invalid duration"):
		return short(s) + " is not a duration; write it as in 90s, 5m or 1h30m"
	default:
		return t
	}
}

// plain reads text, numbers and truth values.
func (d *decoder) plain(path string, p place, n *yaml.Node, v reflect.Value) {
	s, ok := d.scalar(path, p, n)
	if !ok {
		return
	}
	tag := n.ShortTag()
	switch v.Kind() {
	case reflect.String:
		if tag != "!!str" && tag != "!!timestamp" {
			d.wrong(path, p, "needs text; put %s in quotes", short(s))
			return
		}
		v.SetString(s)
	case reflect.Bool:
		if tag != "!!bool" || (s != "true" && s != "false") {
			d.wrong(path, p, "needs true or false, not %s", short(s))
			return
		}
		v.SetBool(s == "true")
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		i, err := strconv.ParseInt(s, 10, v.Type().Bits())
		if tag != "!!int" || err != nil {
			d.wrong(path, p, "%s", numberText(s, tag, err))
			return
		}
		v.SetInt(i)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		u, err := strconv.ParseUint(s, 10, v.Type().Bits())
		if tag != "!!int" || err != nil {
			d.wrong(path, p, "%s", numberText(s, tag, err))
			return
		}
		v.SetUint(u)
	case reflect.Float32, reflect.Float64:
		f, err := strconv.ParseFloat(s, v.Type().Bits())
		if (tag != "!!float" && tag != "!!int") || err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
			d.wrong(path, p, "needs a number, not %s", short(s))
			return
		}
		v.SetFloat(f)
	default:
		d.wrong(path, p, "cannot be read into a %s: a bug", v.Type())
	}
}

func numberText(s, tag string, err error) string {
	if tag == "!!int" && errors.Is(err, strconv.ErrRange) {
		return "needs a smaller number than " + short(s)
	}
	return "needs a whole number, not " + short(s)
}

// pairs walks the keys of a mapping, each once.
func (d *decoder) pairs(path string, p place, n *yaml.Node, each func(key string, k, v *yaml.Node)) {
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return // "cordon:" is "cordon: {}"
	}
	if n.Kind != yaml.MappingNode {
		d.wrong(path, p, "needs keys and values, not %s", describe(n))
		return
	}
	first := map[string]int{}
	for i := 0; i+1 < len(n.Content) && d.limit == nil; i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		for k.Kind == yaml.AliasNode {
			k = k.Alias
		}
		switch {
		case k.Kind != yaml.ScalarNode || k.ShortTag() == "!!null":
			d.fail(path, at(n.Content[i]), "has a key that is not text")
			continue
		case k.ShortTag() == "!!merge":
			d.fail(path, at(k), "merge keys (<<) are not used here; write the keys out")
			continue
		}
		if line, twice := first[k.Value]; twice {
			d.fail(Key(path, k.Value), at(n.Content[i]), "is there already, at line %d", line)
			continue
		}
		first[k.Value] = k.Line
		each(k.Value, n.Content[i], v)
	}
}

// of is the place of a value under a key.
func of(k, v *yaml.Node) place {
	if v.Kind == yaml.ScalarNode && v.Value != "" {
		return at(v)
	}
	return at(k)
}

func (d *decoder) structure(path string, p place, n *yaml.Node, v reflect.Value, depth int) {
	known := map[string]reflect.Value{}
	keys(v, known)
	d.pairs(path, p, n, func(key string, kn, vn *yaml.Node) {
		f, ok := known[key]
		if !ok {
			d.fail(Key(path, key), at(kn), "%s", Unknown("key", key, slices.Sorted(maps.Keys(known))))
			return
		}
		d.value(Key(path, key), of(kn, vn), vn, f, depth+1)
	})
}

func (d *decoder) dict(path string, p place, n *yaml.Node, v reflect.Value, depth int) {
	m := reflect.MakeMap(v.Type())
	d.pairs(path, p, n, func(key string, kn, vn *yaml.Node) {
		e := reflect.New(v.Type().Elem()).Elem()
		d.value(Key(path, key), of(kn, vn), vn, e, depth+1)
		m.SetMapIndex(reflect.ValueOf(key).Convert(v.Type().Key()), e)
	})
	v.Set(m)
}

func (d *decoder) list(path string, p place, n *yaml.Node, v reflect.Value, depth int) {
	switch {
	case n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null":
		v.SetZero()
		return
	case n.Kind != yaml.SequenceNode:
		d.wrong(path, p, "needs a list, not %s", describe(n))
		return
	}
	s := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
	for i, item := range n.Content {
		d.value(Item(path, i), at(item), item, s.Index(i), depth+1)
	}
	v.Set(s)
}

// fields calls each for every field of a struct that has a key, and for those whose
// keys stand among its own; these have no name.
func fields(v reflect.Value, each func(name string, f reflect.Value)) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, opts, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case !f.IsExported() || name == "-":
		case opts == "inline":
			each("", v.Field(i))
		case name == "":
			each(strings.ToLower(f.Name), v.Field(i))
		default:
			each(name, v.Field(i))
		}
	}
}

// keys is where the value of each key of a struct goes, those of inlined structs too.
func keys(v reflect.Value, into map[string]reflect.Value) {
	for v.Kind() == reflect.Interface || v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return // an inlined nil has no keys
	}
	fields(v, func(name string, f reflect.Value) {
		if name == "" {
			keys(f, into)
			return
		}
		into[name] = f
	})
}

// describe names the kind of a node for people.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "keys and values"
	case yaml.SequenceNode:
		return "a list"
	case yaml.ScalarNode:
		return short(n.Value)
	case yaml.DocumentNode, yaml.AliasNode:
	}
	return "this"
}

// short bounds what a message repeats of a file.
func short(s string) string {
	const most = 40
	if r := []rune(s); len(r) > most {
		s = string(r[:most]) + "…"
	}
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return r == '"' || r == ' ' || !strconv.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}
