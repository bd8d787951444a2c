// A client and a server of grpc-go for test.Echo, of which messages are plain bytes; tests/interop/__init__.py describes both.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

var (
	address = flag.String("address", "127.0.0.1:0", "of the server")
	caFile  = flag.String("ca", "", "PEM file of the authority that the other side is checked with")
	cert    = flag.String("cert", "", "PEM file of the own certificate")
	key     = flag.String("key", "", "PEM file of its key")
)

func main() {
	flag.Parse()
	switch flag.Arg(0) {
	case "server":
		serve()
	case "checks":
		runChecks()
	case "drain":
		runDrain()
	default:
		log.Fatalf("say server, checks or drain, not %q", flag.Arg(0))
	}
}

// say writes one line of JSON.
func say(line map[string]any) {
	if err := json.NewEncoder(os.Stdout).Encode(line); err != nil {
		log.Fatal(err)
	}
}

func report(check string, err error) {
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	say(map[string]any{"check": check, "problem": problem})
}

// transport returns plain text, or TLS as the flags say.
func transport(isServer bool) credentials.TransportCredentials {
	if *caFile == "" && *cert == "" {
		return insecure.NewCredentials()
	}
	config := &tls.Config{}
	if *cert != "" {
		pair, err := tls.LoadX509KeyPair(*cert, *key)
		if err != nil {
			log.Fatal(err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	if *caFile != "" {
		pem, err := os.ReadFile(*caFile)
		if err != nil {
			log.Fatal(err)
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(pem)
		config.RootCAs = pool
		if isServer {
			config.ClientCAs, config.ClientAuth = pool, tls.RequireAndVerifyClientCert
		}
	}
	return credentials.NewTLS(config)
}

// rawCodec passes bytes on as they are.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(value any) ([]byte, error) { return *value.(*[]byte), nil }

func (rawCodec) Unmarshal(data []byte, value any) error {
	*value.(*[]byte) = append([]byte{}, data...)
	return nil
}

func reversed(raw []byte) []byte {
	out := make([]byte, len(raw))
	for i, b := range raw {
		out[len(raw)-1-i] = b
	}
	return out
}

func wrong(what string, found, wanted any) error {
	return fmt.Errorf("%s: %.200v instead of %.200v", what, found, wanted)
}
