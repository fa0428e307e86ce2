package main

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCommittedFileIsOfThisCatalogue(t *testing.T) {
	b, err := os.ReadFile("../xid.rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(render(), string(b)); diff != "" {
		t.Errorf("rules/alerts/xid.rules.yaml is stale, run go generate ./rules/alerts (-want +committed):\n%s", diff)
	}
}
