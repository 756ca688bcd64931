package codec

import (
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
)

// TypeRelease is published by a source that no longer serves a cluster ("clustername"). The broker drops all
// its records of that cluster, live ones and tombstones. The agent receives no deletion. It has no data and may
// be repeated.
const TypeRelease = "dev.hawser.sync.v1.release"

// NewRelease returns a release of cluster by source. It returns an *AttributeError if cluster or source is
// empty: a release always names one cluster.
func NewRelease(id string, now time.Time, source, cluster string) (Event, error) {
	e := event.New(SpecVersion)
	switch {
	case source == "":
		return Event{}, attributeError("source", source, "is empty")
	case cluster == "":
		return Event{}, attributeError(ExtClusterName, cluster, "is empty")
	}
	e.SetID(id)
	e.SetTime(now)
	e.SetSource(source)
	e.SetType(TypeRelease)
	e.SetExtension(ExtClusterName, cluster)
	e.SetExtension(ExtOriginalSource, "")
	if err := e.Validate(); err != nil {
		return Event{}, attributeError("source", source, err.Error())
	}
	return e, nil
}
