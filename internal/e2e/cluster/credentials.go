package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// The users that the API server knows by a token, as the audit log names them.
// Everybody else is a service account.
const (
	// UserAdmin is who the test itself is.
	UserAdmin = "e2e:admin"
	// UserKwok plays the kubelets.
	UserKwok = "e2e:kwok"
	// UserTrainer is the [Trainer].
	UserTrainer = "e2e:trainer"
	// UserRebooter is the [Rebooter].
	UserRebooter = "e2e:rebooter"
	// UserControllerManager and UserScheduler are who they are in any cluster.
	UserControllerManager = "system:kube-controller-manager"
	UserScheduler         = "system:kube-scheduler"
)

// users lists the token users and whether they may do anything at all. The
// others get what Kubernetes' own bootstrap roles give them.
var users = []struct {
	name   string
	master bool
}{
	{UserAdmin, true},
	{UserKwok, true},
	{UserTrainer, true},
	{UserRebooter, true},
	{UserControllerManager, false},
	{UserScheduler, false},
}

// credentials are the files of one cluster by which its parts know each other.
type credentials struct {
	dir    string
	tokens map[string]string // by user
}

// newCredentials writes the key pair of service accounts and the token file into dir.
func newCredentials(dir string) (credentials, error) {
	c := credentials{dir: dir, tokens: map[string]string{}}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return c, err
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return c, err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return c, err
	}
	var lines strings.Builder
	for _, u := range users {
		c.tokens[u.name] = rand.Text()
		group := ""
		if u.master {
			group = "system:masters"
		}
		fmt.Fprintf(&lines, "%s,%s,%s,%q\n", c.tokens[u.name], u.name, u.name, group)
	}
	for name, data := range map[string][]byte{
		c.saKey():     pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private}),
		c.saPublic():  pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}),
		c.tokenFile(): []byte(lines.String()),
	} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			return c, err
		}
	}
	return c, nil
}

func (c credentials) saKey() string     { return filepath.Join(c.dir, "service-accounts.key") }
func (c credentials) saPublic() string  { return filepath.Join(c.dir, "service-accounts.pub") }
func (c credentials) tokenFile() string { return filepath.Join(c.dir, "tokens.csv") }

// certDir is where the API server makes its own certificate at its first start.
func (c credentials) certDir() string { return filepath.Join(c.dir, "apiserver") }

// ca is the certificate that signed the API server's.
func (c credentials) ca() string { return filepath.Join(c.certDir(), "apiserver.crt") }

// restConfig returns the client configuration of a bearer of token, without a rate limit.
func (c credentials) restConfig(server, token string) *rest.Config {
	return &rest.Config{
		Host:            server,
		BearerToken:     token,
		QPS:             -1,
		TLSClientConfig: rest.TLSClientConfig{CAFile: c.ca()},
	}
}

// kubeconfig writes the kubeconfig of a bearer of token and returns its path. The
// certificate is inside, so that the file works from anywhere.
func (c credentials) kubeconfig(server, user, namespace, token string) (string, error) {
	ca, err := os.ReadFile(c.ca())
	if err != nil {
		return "", err
	}
	cfg := api.NewConfig()
	cfg.Clusters["e2e"] = &api.Cluster{Server: server, CertificateAuthorityData: ca}
	cfg.AuthInfos[user] = &api.AuthInfo{Token: token}
	cfg.Contexts["e2e"] = &api.Context{Cluster: "e2e", AuthInfo: user, Namespace: namespace}
	cfg.CurrentContext = "e2e"
	path := filepath.Join(c.dir, strings.ReplaceAll(user, ":", "-")+".kubeconfig")
	if err := clientcmd.WriteToFile(*cfg, path); err != nil {
		return "", err
	}
	return path, nil
}
