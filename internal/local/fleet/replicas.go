package fleet

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hawser-io/hawser/internal/local/postgres"
)

// MaxBrokers is the largest number of brokers of a fleet, which has addresses for no more.
const MaxBrokers = 8

// BrokerOf returns the name of the broker with this number, from 1: the first is Broker.
func BrokerOf(number int) string {
	if number == 1 {
		return Broker
	}
	return fmt.Sprintf("%s-%d", Broker, number)
}

// Brokers returns the names of all brokers of the fleet.
func (f *Fleet) Brokers() []string {
	names := make([]string, max(1, f.cfg.Brokers))
	for i := range names {
		names[i] = BrokerOf(i + 1)
	}
	return names
}

func (f *Fleet) isBroker(program string) bool { return slices.Contains(f.Brokers(), program) }

// BrokerAddr is host:port of the gRPC port of the first broker.
func (f *Fleet) BrokerAddr() string { return f.AddrOf(Broker) }

// AddrOf is host:port of the gRPC port of a broker.
func (f *Fleet) AddrOf(broker string) string { return net.JoinHostPort(f.ip(broker), "8090") }

// brokerAddrs lists the addresses of all brokers, as clients are configured with them.
func (f *Fleet) brokerAddrs() string {
	var addrs []string
	for _, name := range f.Brokers() {
		addrs = append(addrs, f.AddrOf(name))
	}
	return strings.Join(addrs, ",")
}

// Database is the PostgreSQL server of several brokers; nil if the fleet has one broker.
func (f *Fleet) Database() *postgres.Server { return f.database }

// startDatabase starts the PostgreSQL server if the fleet has several brokers.
func (f *Fleet) startDatabase(ctx context.Context) (err error) {
	if f.cfg.Brokers <= 1 {
		return nil
	}
	f.cfg.Printf("starting PostgreSQL")
	programs, err := postgres.Fetch(ctx, f.cfg.Root, nil)
	if err != nil {
		return err
	}
	if f.database, err = postgres.Create(ctx, postgres.Config{Programs: programs, Dir: filepath.Join(f.cfg.Dir, "postgresql")}); err != nil {
		return err
	}
	return f.database.Start(f.ctx)
}
