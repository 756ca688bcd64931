package admin

import (
	"context"

	ggrpc "google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hawser-io/hawser/internal/broker/denylist"
	"github.com/hawser-io/hawser/internal/broker/request"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// maxReason is the maximum length of the reason of a denial, in bytes.
const maxReason = 256

// Denials returns the denylist, for the ports that enforce it.
func (a *Admin) Denials() *denylist.List { return a.denials }

// Deny adds an identity, or one certificate, to the denylist. When it returns, that client has no connection.
func (a *Admin) Deny(ctx context.Context, r *hawserv1.DenyRequest) (*hawserv1.DenyResponse, error) {
	by := callerOf(ctx)
	s, err := subjectOf(r.GetSubject())
	switch {
	case err != nil:
		return nil, err
	case s.Serial == "" && s.Identity == by:
		return nil, request.Invalid("subject", by.String()+" would deny itself", "have another operator do it")
	case len(r.GetReason()) > maxReason:
		return nil, request.Invalid("reason", "the reason is too long", "use at most 256 bytes")
	}
	d := denylist.Denial{Subject: s, By: by.Name, At: a.cfg.Now().UTC(), Reason: r.GetReason()}
	if err := a.denials.Deny(ctx, d); err != nil {
		return nil, request.Store(err)
	}
	a.cfg.Log.Warn("an operator denied a client", "operator", by.Name, "subject", s.String())
	return &hawserv1.DenyResponse{}, nil
}

// Allow removes a subject from the denylist.
func (a *Admin) Allow(ctx context.Context, r *hawserv1.AllowRequest) (*hawserv1.AllowResponse, error) {
	s, err := subjectOf(r.GetSubject())
	if err != nil {
		return nil, err
	}
	switch known, err := a.denials.Allow(ctx, s); {
	case err != nil:
		return nil, request.Store(err)
	case !known:
		return nil, request.NotFound(s.String()+" is not denied", "hawser get denials shows the denied ones")
	}
	a.cfg.Log.Info("an operator allowed a denied client", "operator", callerOf(ctx).Name, "subject", s.String())
	return &hawserv1.AllowResponse{}, nil
}

func subjectOf(text string) (denylist.Subject, error) {
	s, err := denylist.ParseSubject(text)
	if err != nil {
		return s, request.Invalid("subject", err.Error(), "")
	}
	return s, nil
}

// ListDenials sends the denylist, sorted by subject.
func (a *Admin) ListDenials(_ *hawserv1.ListDenialsRequest, s ggrpc.ServerStreamingServer[hawserv1.ListDenialsResponse]) error {
	a.warn(s)
	for _, d := range a.denials.All() {
		if err := s.Send(&hawserv1.ListDenialsResponse{Subject: d.Subject.String(), Operator: d.By, At: timestamppb.New(d.At), Reason: d.Reason}); err != nil {
			return err
		}
	}
	return nil
}
