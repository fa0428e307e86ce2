package config

import (
	"errors"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// validate asks v and everything in it, innermost first, what is wrong.
func (d *decoder) validate(path string, v reflect.Value, depth int) {
	if depth > maxDepth || v.Type() == nodeType || v.Type() == reflect.TypeFor[*yaml.Node]() {
		return
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			d.validate(path, v.Elem(), depth+1)
		}
		return
	case reflect.Struct:
		fields(v, func(name string, f reflect.Value) {
			if name == "" {
				d.validate(path, f, depth+1)
				return
			}
			d.validate(Key(path, name), f, depth+1)
		})
	case reflect.Slice:
		for i := range v.Len() {
			d.validate(Item(path, i), v.Index(i), depth+1)
		}
	case reflect.Map:
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, k := range keys {
			// What is in a map can't be changed in place, and Validate fills in defaults.
			e := reflect.New(v.Type().Elem()).Elem()
			e.Set(v.MapIndex(k))
			d.validate(Key(path, k.String()), e, depth+1)
			v.SetMapIndex(k, e)
		}
	default:
	}
	if v.CanAddr() {
		if c, ok := v.Addr().Interface().(Validator); ok {
			d.take(path, c.Validate(path))
		}
	}
}

// take sorts in what a Validate of the value at path has returned.
func (d *decoder) take(path string, err error) {
	switch e := err.(type) { //nolint:errorlint // the tree is walked here, not searched
	case nil:
	case Error:
		d.locate(e)
	case Errors:
		for _, one := range e {
			d.locate(one)
		}
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			d.take(path, one)
		}
	default:
		if one, ok := errors.AsType[Errors](err); ok {
			d.take(path, one)
			return
		}
		d.locate(Error{Path: path, Text: err.Error()})
	}
}

// locate gives a mistake its line, unless it follows from one that is told already: a
// value that could not be read is zero, and Validate knows no better.
func (d *decoder) locate(e Error) {
	if e.Line > 0 {
		d.errs = append(d.errs, e)
		return
	}
	for bad := range d.bad {
		if bad == e.Path || parent(bad) == e.Path || strings.HasPrefix(e.Path, bad+".") || strings.HasPrefix(e.Path, bad+"[") {
			return
		}
	}
	for path := e.Path; ; path = parent(path) {
		if p, ok := d.places[path]; ok {
			e.Line, e.Col = p.line, p.col
			break
		}
		if path == "" {
			break
		}
	}
	d.errs = append(d.errs, e)
}

// parent is the path without its last part.
func parent(path string) string {
	if strings.HasSuffix(path, `"]`) {
		if i := strings.LastIndex(path, `["`); i >= 0 {
			return path[:i]
		}
	}
	return path[:max(0, strings.LastIndexAny(path, ".["))]
}
