// Package crds holds the definitions of Stoker's custom resources as they are
// installed. It knows nothing of what is in them.
package crds

import _ "embed"

// Incidents is the YAML of the definition of incidents.stoker.dev.
//
//go:embed incidents.yaml
var Incidents []byte
