package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.dev/stoker/internal/e2e/programs"
)

// ports are the loopback ports of one cluster.
type ports struct {
	etcd, etcdPeer, apiServer, controllerManager, scheduler, kwok, alertmanager int
}

func newPorts() (ports, error) {
	var p ports
	for _, port := range []*int{&p.etcd, &p.etcdPeer, &p.apiServer, &p.controllerManager, &p.scheduler, &p.kwok, &p.alertmanager} {
		var err error
		if *port, err = freePort(); err != nil {
			return ports{}, err
		}
	}
	return p, nil
}

func httpURL(port int) string { return fmt.Sprintf("http://%s:%d", loopback, port) }

func httpsURL(port int) string { return fmt.Sprintf("https://%s:%d", loopback, port) }

func (c *Cluster) etcd(bin programs.Paths, p ports) (*Server, error) {
	return c.newServer("etcd", bin.Etcd, probe(httpURL(p.etcd)+"/health", ""),
		"--name=default",
		"--data-dir="+filepath.Join(c.Dir, "etcd"),
		"--listen-client-urls="+httpURL(p.etcd),
		"--advertise-client-urls="+httpURL(p.etcd),
		"--listen-peer-urls="+httpURL(p.etcdPeer),
		"--initial-advertise-peer-urls="+httpURL(p.etcdPeer),
		"--initial-cluster=default="+httpURL(p.etcdPeer),
		"--unsafe-no-fsync",
	)
}

func (c *Cluster) apiServer(bin programs.Paths, p ports, o Options) (*Server, error) {
	policy, err := c.write("audit-policy.yaml", auditPolicy)
	if err != nil {
		return nil, err
	}
	args := []string{
		"--etcd-servers=" + httpURL(p.etcd),
		"--bind-address=" + loopback,
		fmt.Sprintf("--secure-port=%d", p.apiServer),
		"--cert-dir=" + c.creds.certDir(),
		"--service-account-key-file=" + c.creds.saPublic(),
		"--service-account-signing-key-file=" + c.creds.saKey(),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-cluster-ip-range=10.0.0.0/24",
		"--token-auth-file=" + c.creds.tokenFile(),
		"--authorization-mode=RBAC",
		"--allow-privileged",
		"--endpoint-reconciler-type=none", // nothing here reaches it by its service
		"--audit-policy-file=" + policy,
		"--audit-log-path=" + c.audit.path,
		"--audit-log-format=json",
		"--audit-log-mode=blocking",
		"--audit-log-maxsize=100000", // MB: never rotated
	}
	ready := probe(httpsURL(p.apiServer)+"/readyz", c.creds.tokens[UserAdmin])
	return c.newServer("kube-apiserver", bin.APIServer, ready, append(args, o.APIServerArgs...)...)
}

func (c *Cluster) controllerManager(bin programs.Paths, p ports, o Options) (*Server, error) {
	kubeconfig, err := c.kubeconfigOf(UserControllerManager)
	if err != nil {
		return nil, err
	}
	args := []string{
		"--kubeconfig=" + kubeconfig,
		"--service-account-private-key-file=" + c.creds.saKey(),
		"--root-ca-file=" + c.creds.ca(),
		"--use-service-account-credentials",
		"--leader-elect=false",
		"--controllers=*,-node-ipam-controller",
		"--bind-address=" + loopback,
		fmt.Sprintf("--secure-port=%d", p.controllerManager),
		"--authentication-skip-lookup",
		"--kube-api-qps=200", "--kube-api-burst=400",
	}
	if o.NodeGrace > 0 {
		args = append(args, "--node-monitor-grace-period="+o.NodeGrace.String(),
			"--node-monitor-period="+max(o.NodeGrace/10, 500*time.Millisecond).String())
	}
	ready := probe(httpsURL(p.controllerManager)+"/healthz", "")
	return c.newServer("kube-controller-manager", bin.ControllerManager, ready, args...)
}

func (c *Cluster) scheduler(bin programs.Paths, p ports) (*Server, error) {
	kubeconfig, err := c.kubeconfigOf(UserScheduler)
	if err != nil {
		return nil, err
	}
	return c.newServer("kube-scheduler", bin.Scheduler, probe(httpsURL(p.scheduler)+"/healthz", ""),
		"--kubeconfig="+kubeconfig,
		"--leader-elect=false",
		"--bind-address="+loopback,
		fmt.Sprintf("--secure-port=%d", p.scheduler),
		"--authentication-skip-lookup",
	)
}

func (c *Cluster) kwok(bin programs.Paths, p ports) (*Server, error) {
	kubeconfig, err := c.kubeconfigOf(UserKwok)
	if err != nil {
		return nil, err
	}
	config, err := c.write("stages.yaml", stages)
	if err != nil {
		return nil, err
	}
	return c.newServer("kwok", bin.Kwok, probe(httpURL(p.kwok)+"/healthz", ""),
		"--kubeconfig="+kubeconfig,
		"--config="+config,
		"--manage-all-nodes=true",
		"--cidr=10.64.0.0/16",
		"--node-ip=10.63.0.1",
		"--node-lease-duration-seconds=0", // the heartbeat is in the node's status
		fmt.Sprintf("--server-address=%s:%d", loopback, p.kwok),
	)
}

func (c *Cluster) alertmanager(bin programs.Paths, p ports, config string) (*Server, error) {
	file, err := c.write("alertmanager.yaml", []byte(config))
	if err != nil {
		return nil, err
	}
	storage := filepath.Join(c.Dir, "alertmanager")
	if err := os.Mkdir(storage, 0o750); err != nil {
		return nil, err
	}
	return c.newServer("alertmanager", bin.Alertmanager, probe(httpURL(p.alertmanager)+"/-/ready", ""),
		"--config.file="+file,
		"--storage.path="+storage,
		fmt.Sprintf("--web.listen-address=%s:%d", loopback, p.alertmanager),
		"--cluster.listen-address=", // one of its kind
	)
}

// kubeconfigOf writes the kubeconfig of a token user.
func (c *Cluster) kubeconfigOf(user string) (string, error) {
	return c.creds.kubeconfig(c.URL, user, metav1.NamespaceDefault, c.creds.tokens[user])
}
