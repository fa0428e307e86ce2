package dcgm

import (
	"os"
	"slices"
	"time"
)

// Why a list of fields is not as it was meant, one of a closed list with those of the
// cluster in configmap.go.
const (
	listUnread = "unreadable"
	listNone   = "no-field"    // no line of it can be used
	listWrong  = "wrong-lines" // some can't
)

// A fileList is a list in a file, read again when that changes.
type fileList struct {
	path    string
	changed time.Time // when it was, at the last reading
	failure string    // what was wrong with it
	fields  *[]Field  // nil before it could be used
	why     string
}

// look reads the file if it has changed. A list of which nothing can be used changes nothing.
func (l *fileList) look(warn func(msg string, args ...any)) {
	info, err := os.Stat(l.path)
	if err == nil && info.ModTime().Equal(l.changed) {
		return
	}
	var fields []Field
	if err == nil {
		fields, err = ReadFields(l.path)
	}
	l.why = reasonOf(fields, err)
	if len(fields) > 0 || err == nil {
		l.changed, l.fields = info.ModTime(), &fields
	}
	failure := ""
	if err != nil {
		failure = err.Error()
	}
	if failure != "" && failure != l.failure {
		if len(fields) > 0 {
			warn("some lines of the list of fields can't be used", "used", len(fields), "err", err)
		} else {
			warn("list of fields can't be used, the one before stays in force", "err", err)
		}
	}
	l.failure = failure
}

func reasonOf(fields []Field, err error) string {
	switch {
	case err == nil:
		return ""
	case len(fields) > 0:
		return listWrong
	case os.IsNotExist(err) || os.IsPermission(err):
		return listUnread
	}
	return listNone
}

// reload takes the list that is to be in force: that of the cluster once it is there, that
// of the file once it could be used, else the one that was given.
func (r *reader) reload() {
	want, from := &r.given, "as given"
	if r.file.path != "" {
		r.file.look(r.log.Error)
		r.s.mu.Lock()
		r.s.self.file, r.s.self.hasFile = r.file.why, true
		r.s.mu.Unlock()
		if r.file.fields != nil {
			want, from = r.file.fields, r.file.path
		}
	}
	if m := r.o.ConfigMap; m != nil {
		if fields := m.fields.Load(); fields != nil {
			want, from = fields, m.String()
		}
	}
	if want == r.inForce {
		return
	}
	r.inForce = want
	fields := arranged(*want, r.o.Compatible)
	if !slices.Equal(fields, r.o.Fields) {
		r.log.Info("fields are read from a list", "list", from, "fields", len(fields))
		r.o.Fields = fields
		r.forget()
		clear(r.labels)
	}
}
