// The end-to-end tests run Stoker against a real control plane. They are a
// module of their own so that what they need is not linked into Stoker.
module stoker.dev/stoker/internal/e2e

go 1.26.7

require (
	go.uber.org/goleak v1.3.0
	golang.org/x/mod v0.42.0
	k8s.io/api v0.37.2
	k8s.io/apimachinery v0.37.2
	k8s.io/client-go v0.37.2
	sigs.k8s.io/yaml v1.6.0
)

replace stoker.dev/stoker => ../..
