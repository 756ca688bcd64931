package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"open-cluster-management.io/sdk-go/pkg/cloudevents/clients/common"
	"open-cluster-management.io/sdk-go/pkg/cloudevents/generic/types"
	"open-cluster-management.io/sdk-go/pkg/cloudevents/server"
)

// service keeps one event per work, in the order of arrival. It accepts every status update, unless a command
// makes it reject some.
type service struct {
	mu      sync.Mutex
	order   []string
	works   map[string]*cloudevents.Event
	refusal error
	refuses int
}

var _ server.Service = (*service)(nil)

func newService() *service { return &service{works: map[string]*cloudevents.Event{}} }

func (s *service) put(e *cloudevents.Event) error {
	id, ok := e.Extensions()[types.ExtensionResourceID].(string)
	if !ok {
		return errors.New("the event has no resourceid")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.works[id] == nil {
		s.order = append(s.order, id)
	}
	s.works[id] = e
	return nil
}

func (s *service) drop(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.works[id] == nil {
		return fmt.Errorf("no work %s", id)
	}
	delete(s.works, id)
	s.order = slices.DeleteFunc(s.order, func(o string) bool { return o == id })
	return nil
}

func (s *service) refuse(n int, how string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch how {
	case "conflict":
		s.refusal = apierrors.NewConflict(common.ManifestWorkGR, "work", errors.New("refused by the test"))
	case "error":
		s.refusal = errors.New("refused by the test")
	default:
		return fmt.Errorf("refuse with conflict or error, not with %q", how)
	}
	s.refuses = n
	return nil
}

// List implements [server.Service]. The caller may change the returned events.
func (s *service) List(_ context.Context, o types.ListOptions) ([]*cloudevents.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var events []*cloudevents.Event
	for _, id := range s.order {
		e := s.works[id]
		if e.Extensions()[types.ExtensionClusterName] == o.ClusterName {
			clone := e.Clone()
			events = append(events, &clone)
		}
	}
	return events, nil
}

// HandleStatusUpdate implements [server.Service].
func (s *service) HandleStatusUpdate(context.Context, *cloudevents.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuses == 0 {
		return nil
	}
	s.refuses--
	return s.refusal
}

// RegisterHandler implements [server.Service]. It does nothing, because the commands call the broker directly.
func (s *service) RegisterHandler(context.Context, server.EventHandler) {}
