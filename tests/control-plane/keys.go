package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// writeKeys makes what a control plane on the loopback interface needs: an authority (ca.crt), the API server's certificate
// and key (apiserver.crt, apiserver.key), and the key that signs the tokens of service accounts (sa.key).
func writeKeys(folder string) error {
	authority, err := newKey()
	if err != nil {
		return err
	}
	now := time.Now()
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "eadt-test-authority"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(30 * 24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	rootBytes, err := x509.CreateCertificate(rand.Reader, root, root, authority.Public(), authority)
	if err != nil {
		return err
	}
	server, err := newKey()
	if err != nil {
		return err
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "kube-apiserver"},
		NotBefore: root.NotBefore, NotAfter: root.NotAfter, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(10, 0, 0, 1)},
	}
	leafBytes, err := x509.CreateCertificate(rand.Reader, leaf, root, server.Public(), authority)
	if err != nil {
		return err
	}
	tokens, err := newKey()
	if err != nil {
		return err
	}
	if err := write(folder, "ca.crt", "CERTIFICATE", rootBytes); err != nil {
		return err
	}
	if err := write(folder, "apiserver.crt", "CERTIFICATE", leafBytes); err != nil {
		return err
	}
	for name, key := range map[string]*ecdsa.PrivateKey{"apiserver.key": server, "sa.key": tokens} {
		bytes, err := x509.MarshalECPrivateKey(key)
		if err != nil {
			return err
		}
		if err := write(folder, name, "EC PRIVATE KEY", bytes); err != nil {
			return err
		}
	}
	return nil
}

func newKey() (*ecdsa.PrivateKey, error) {
	return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
}

func write(folder, name, kind string, bytes []byte) error {
	text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes})
	return os.WriteFile(filepath.Join(folder, name), text, 0o600)
}
