package transport

import (
	"fmt"
	"net"
	"strings"
)

// SplitAddresses returns the addresses in s without the commas between them. They are the addresses of the brokers
// of one hub: these share a store, and a client may use any of them.
func SplitAddresses(s string) []string {
	list := strings.Split(s, ",")
	for i := range list {
		list[i] = strings.TrimSpace(list[i])
	}
	return list
}

// Addresses is [SplitAddresses] for addresses of the form host:port. The error begins with the first one of another form.
func Addresses(s string) ([]string, error) {
	list := SplitAddresses(s)
	for _, a := range list {
		host, port, err := net.SplitHostPort(a)
		if err != nil || host == "" || port == "" || strings.ContainsAny(a, "/ ") {
			return nil, fmt.Errorf("%q: use host:port, as broker.example.com:8090, with commas between several brokers", a)
		}
	}
	return list, nil
}
