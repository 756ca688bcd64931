package postgres

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/telemetry"
)

// kinds lists all kinds, so that each has a series before its first error.
var kinds = [...]Kind{Unreachable, Untrusted, Rejected, Forbidden, Unsuitable, ReadOnly, Busy, NoSpace, Damaged, Unconfirmed, Lost, Other}

// metrics are described in docs/metrics.md.
type metrics struct {
	errors  *prometheus.CounterVec
	standby prometheus.Gauge
}

// newMetrics registers the metrics; nil registers none.
func (s *Store) newMetrics(r prometheus.Registerer) {
	meter := telemetry.NewMeter(r, "hawser_database_")
	s.metrics = metrics{
		errors:  meter.Counters("errors_total", "Calls of the database that failed, by kind.", "kind"),
		standby: meter.Gauge("synchronous_standby", "1 if commits wait for a synchronous standby, 0 if a failover can lose what was acknowledged."),
	}
	for _, k := range kinds {
		s.metrics.errors.WithLabelValues(string(k))
	}
	meter.GaugeFunc("feed_lag_seconds", "Time since this broker last had all commits of the other ones.", nil, func() float64 {
		return time.Since(time.Unix(0, s.followed.Load())).Seconds()
	})
}

// failure returns the failure for an error, and counts it.
func (s *Store) failure(err error) error {
	err = s.target.failure(err)
	if f := (*DatabaseError)(nil); errors.As(err, &f) {
		s.metrics.errors.WithLabelValues(string(f.Kind)).Inc()
	}
	return err
}
