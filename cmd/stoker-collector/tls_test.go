package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// writeCertificate makes a key and a certificate of 127.0.0.1 that it signs itself, and
// returns the pool of those who trust it.
func writeCertificate(t *testing.T, certificate, key string) *x509.CertPool {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	writePage(t, key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	if der, err = x509.CreateCertificate(rand.Reader, template, template, private.Public(), private); err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	writePage(t, certificate, string(text))
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		t.Fatal("the certificate is none")
	}
	return pool
}

// TestTLS: with a certificate in the web configuration the page is there over TLS alone, and a
// certificate that is not there keeps the program from starting.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	file, config := filepath.Join(dir, "gpu.prom"), filepath.Join(dir, "web.yml")
	writePage(t, file, page)
	writePage(t, config, "tls_server_config: {cert_file: own.crt, key_file: own.key}\n") // beside the configuration
	args := []string{"--source", "file", "--file", file, "--node", "n", "--interval", "100ms", "--web-config-file", config}

	missing := filepath.Join(dir, "own.crt")
	err := run(t.Context(), append(args, "--listen", "127.0.0.1:0"), io.Discard, io.Discard)
	if err == nil || exitCode(err) != 2 || !strings.HasPrefix(err.Error(), "--web-config-file: "+config+": ") || !strings.Contains(err.Error(), "open "+missing+": no such file") {
		t.Fatalf("without the certificate: %v, status %d; want 2 and that %s is not there", err, exitCode(err), missing)
	}

	pool := writeCertificate(t, missing, filepath.Join(dir, "own.key"))
	p := start(t, args...)
	ask := func(scheme string, trusted *x509.CertPool) (int, string, error) {
		client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
			DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12},
		}}
		r, err := client.Get(scheme + "://" + p.address + "/metrics")
		if err != nil {
			return 0, "", err
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		return r.StatusCode, string(body), err
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		code, body, err := ask("https", pool)
		if err == nil && code == http.StatusOK && strings.Contains(body, xid79) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("over TLS: %d, %v\n%s", code, err, body)
		}
	}
	if code, body, err := ask("http", nil); err == nil && (code != http.StatusBadRequest || strings.Contains(body, "stoker_")) {
		t.Errorf("without TLS: %d, want 400 and nothing of the page\n%s", code, body)
	}
	if code, _, err := ask("https", x509.NewCertPool()); err == nil {
		t.Errorf("somebody who does not trust the certificate got %d", code)
	}
	p.stop(t)
}
