package kube

import "stoker.dev/stoker/actuator"

// What the account needs besides what the specs of actions and frameworks say.
var (
	// ReadRules is for the cached world.
	ReadRules = []actuator.Rule{
		{Resource: "nodes", Verbs: []string{"get", "list", "watch"}},
		{Resource: "pods", Verbs: []string{"get", "list", "watch"}},
	}
	// LeaseRules is for the election.
	LeaseRules = []actuator.Rule{{Group: "coordination.k8s.io", Resource: "leases", Verbs: []string{"create", "get", "update"}, Own: true}}
	// EventRules is for telling on objects what was done to them, wherever they are.
	EventRules = []actuator.Rule{{Resource: "events", Verbs: []string{"create", "patch"}}}
	// TokenRules is for asking who a collector is that brings alerts.
	TokenRules = []actuator.Rule{{Group: "authentication.k8s.io", Resource: "tokenreviews", Verbs: []string{"create"}}}
	// IncidentRules is for incidents that are kept as custom resources.
	IncidentRules = []actuator.Rule{{Group: "stoker.dev", Resource: "incidents", Verbs: []string{"create", "delete", "list", "patch"}, Own: true}}
)
