package hubsource

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/internal/hubsource/core"
	"github.com/hawser-io/hawser/internal/testkit"
)

// TestSource_ReportsDeliveredWithoutExtraRequest: Delivered=True is part of a patch that the status needs
// anyway. Statuses that an earlier release wrote get no patch for it alone, however often their clusters repeat
// them.
func TestSource_ReportsDeliveredWithoutExtraRequest(t *testing.T) {
	inBubble(t, func(b *bench) {
		const count = 50
		a := b.agent("c1")
		s := b.source()
		var names, keys []string
		for i := range count {
			names, keys = append(names, fmt.Sprint("w", i)), append(keys, fmt.Sprint("c1/w", i))
			b.hub.apply(example("c1", names[i]))
		}
		b.settle(time.Minute)
		patches := b.hub.called("PATCH manifestworks")
		if patches != 2*count { // one finalizer and one status each
			b.Errorf("%d patches for %d works", patches, count)
		}
		b.wantDelivered(keys...)
		if err := s.stop(); err != nil {
			b.Fatal(err)
		}

		for i, key := range keys { // the statuses as the earlier release wrote them
			status := b.hub.work(key).Status
			status.Conditions = status.Conditions[:2]
			if _, err := NewHub(b.hub.works().WorkV1(), b.hub.metadata()).PatchStatus(b.Context(), b.hub.work(key), status); err != nil {
				b.Fatal(err)
			}
			if d := delivered(b.hub.work(key).Status); d != nil {
				b.Fatalf("%s shows %+v", names[i], d)
			}
		}
		patches = b.hub.called("PATCH manifestworks")
		b.source()
		b.settle(time.Minute)
		for _, name := range names {
			a.send(name, "")
		}
		b.settle(time.Hour)
		if n := b.hub.called("PATCH manifestworks") - patches; n != 0 {
			b.Errorf("%d patches after an upgrade, without news", n)
		}
		for _, name := range names {
			a.send(name, "news")
		}
		b.settle(time.Minute)
		if n := b.hub.called("PATCH manifestworks") - patches; n != count {
			b.Errorf("%d patches for the news of %d works", n, count)
		}
		b.wantDelivered(keys...)
	})
}

// scarce is a store whose disk is full at times.
type scarce struct {
	store.Store
	err atomic.Pointer[error]
}

// options configures a broker with that store.
func (s *scarce) options() (o testkit.Options) {
	s.Store = mem.Open(mem.Options{NewID: testkit.NewIDs("store")})
	o.Broker.Store = s
	return o
}

func (s *scarce) Err() error {
	if err := s.err.Load(); err != nil {
		return *err
	}
	return nil
}

// TestSource_ReportsFullBrokerOnce: for an hour the disk of the broker is nearly full, full, and nearly full
// again. A waiting work gets one write for that. It gets at most one more after the broker has accepted it and
// its cluster has answered.
func TestSource_ReportsFullBrokerOnce(t *testing.T) {
	disk := &scarce{}
	inBubbleOf(t, disk.options, func(b *bench) {
		const count = 100
		b.agent("c1")
		b.source()
		var keys []string
		change := func(value string) {
			for i := range count {
				b.hub.apply(example("c1", fmt.Sprint("w", i), data(value)))
			}
		}
		for i := range count {
			keys = append(keys, fmt.Sprint("c1/w", i))
		}
		change("first")
		b.settle(time.Minute)
		b.wantDelivered(keys...)
		patches := b.hub.called("PATCH manifestworks")
		low, none := fmt.Errorf("%w: 3 MiB free", store.ErrLow), fmt.Errorf("%w: no space left on device", store.ErrNoSpace)
		disk.err.Store(&none)
		change("second")
		for i := range 60 {
			b.settle(time.Minute)
			disk.err.Store([]*error{&low, &none}[i%2])
		}
		for _, key := range keys {
			if d := delivered(b.hub.work(key).Status); d == nil || d.Status != metav1.ConditionFalse || d.Reason != core.ReasonBrokerFull ||
				d.ObservedGeneration != 2 || !strings.Contains(d.Message, "disk of the broker") {
				b.Fatalf("%s shows %+v", key, b.hub.work(key).Status.Conditions)
			}
		}
		if n := b.hub.called("PATCH manifestworks") - patches; n != count {
			b.Errorf("%d patches of %d works in an hour without room", n, count)
		}
		disk.err.Store(nil)
		b.settle(time.Minute)
		b.wantDelivered(keys...)
		if n := b.hub.called("PATCH manifestworks") - patches; n > 3*count {
			b.Errorf("%d patches of %d works until they are delivered", n, count)
		}
	})
}

// TestSource_ReportsFullBrokerForADeletion: a broker with a full disk accepts no deletion either.
func TestSource_ReportsFullBrokerForADeletion(t *testing.T) {
	disk := &scarce{}
	inBubbleOf(t, disk.options, func(b *bench) {
		b.agent("c1")
		b.source()
		b.hub.apply(example("c1", "w", func(w *workv1.ManifestWork) { w.Labels = map[string]string{"a": "1"} }))
		b.settle(time.Minute)
		none := fmt.Errorf("%w: no space left on device", store.ErrNoSpace)
		disk.err.Store(&none)
		b.hub.remove("manifestworks", "c1/w")
		b.settle(time.Minute)
		if d := delivered(b.hub.work("c1/w").Status); d == nil || d.Reason != core.ReasonBrokerFull {
			b.Errorf("it shows %+v", d)
		}
		disk.err.Store(nil)
		b.settle(time.Minute)
		if w := b.hub.work("c1/w"); w != nil {
			b.Errorf("with room it stays: %+v", w.Status)
		}
	})
}
