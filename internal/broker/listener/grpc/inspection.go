package grpc

import (
	"context"

	ggrpc "google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/hawser-io/hawser/internal/identity"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// Inspector answers the calls of the inspection service, which are authorized
// already; by is who asks, the zero Identity where nobody authenticates. Methods
// are called concurrently. What they pass to send is not kept;
// an error of send ends the call and is returned. Errors are *transport.Error.
type Inspector interface {
	// Warnings are told with each list, in its header [transportgrpc.WarningHeader].
	Warnings() []string
	ListClusters(ctx context.Context, r *hawserv1.ListClustersRequest, send func(*hawserv1.ListClustersResponse) error) error
	ListWorks(ctx context.Context, r *hawserv1.ListWorksRequest, send func(*hawserv1.ListWorksResponse) error) error
	ListOrphans(ctx context.Context, r *hawserv1.ListOrphansRequest, send func(*hawserv1.ListOrphansResponse) error) error
	ListLimits(ctx context.Context, r *hawserv1.ListLimitsRequest, send func(*hawserv1.ListLimitsResponse) error) error
	ForgetWork(ctx context.Context, by identity.Identity, r *hawserv1.ForgetWorkRequest) (*hawserv1.ForgetWorkResponse, error)
	ForgetCluster(ctx context.Context, by identity.Identity, r *hawserv1.ForgetClusterRequest) (*hawserv1.ForgetClusterResponse, error)
	Adopt(ctx context.Context, by identity.Identity, r *hawserv1.AdoptRequest) (*hawserv1.AdoptResponse, error)
	Approve(ctx context.Context, by identity.Identity, r *hawserv1.ApproveRequest) (*hawserv1.ApproveResponse, error)
	Resolve(ctx context.Context, by identity.Identity, r *hawserv1.ResolveRequest) (*hawserv1.ResolveResponse, error)
	Deny(ctx context.Context, by identity.Identity, r *hawserv1.DenyRequest) (*hawserv1.DenyResponse, error)
	Allow(ctx context.Context, by identity.Identity, r *hawserv1.AllowRequest) (*hawserv1.AllowResponse, error)
	ListDenials(ctx context.Context, r *hawserv1.ListDenialsRequest, send func(*hawserv1.ListDenialsResponse) error) error
	Backup(ctx context.Context, r *hawserv1.BackupRequest, send func(*hawserv1.BackupResponse) error) error
}

// callerOf is who called.
func callerOf(ctx context.Context) identity.Identity {
	c, err := connectionOf(ctx)
	if err != nil {
		return identity.Identity{}
	}
	return c.Caller()
}

// warned returns how a list is sent, after the warnings.
func warned[T any](by Inspector, s ggrpc.ServerStreamingServer[T]) func(*T) error {
	_ = s.SetHeader(metadata.MD{transportgrpc.WarningHeader: by.Warnings()}) // fails only behind the first message
	return s.Send
}

// inspection gives an Inspector the shape of the generated service.
type inspection struct {
	hawserv1.UnimplementedInspectionServiceServer
	to Inspector
}

func (i inspection) ListClusters(r *hawserv1.ListClustersRequest, s ggrpc.ServerStreamingServer[hawserv1.ListClustersResponse]) error {
	return i.to.ListClusters(s.Context(), r, warned(i.to, s))
}

func (i inspection) ListWorks(r *hawserv1.ListWorksRequest, s ggrpc.ServerStreamingServer[hawserv1.ListWorksResponse]) error {
	return i.to.ListWorks(s.Context(), r, warned(i.to, s))
}

func (i inspection) ListOrphans(r *hawserv1.ListOrphansRequest, s ggrpc.ServerStreamingServer[hawserv1.ListOrphansResponse]) error {
	return i.to.ListOrphans(s.Context(), r, warned(i.to, s))
}

func (i inspection) ListLimits(r *hawserv1.ListLimitsRequest, s ggrpc.ServerStreamingServer[hawserv1.ListLimitsResponse]) error {
	return i.to.ListLimits(s.Context(), r, warned(i.to, s))
}

func (i inspection) ForgetWork(ctx context.Context, r *hawserv1.ForgetWorkRequest) (*hawserv1.ForgetWorkResponse, error) {
	return i.to.ForgetWork(ctx, callerOf(ctx), r)
}

func (i inspection) ForgetCluster(ctx context.Context, r *hawserv1.ForgetClusterRequest) (*hawserv1.ForgetClusterResponse, error) {
	return i.to.ForgetCluster(ctx, callerOf(ctx), r)
}

func (i inspection) Adopt(ctx context.Context, r *hawserv1.AdoptRequest) (*hawserv1.AdoptResponse, error) {
	return i.to.Adopt(ctx, callerOf(ctx), r)
}

func (i inspection) Approve(ctx context.Context, r *hawserv1.ApproveRequest) (*hawserv1.ApproveResponse, error) {
	return i.to.Approve(ctx, callerOf(ctx), r)
}

func (i inspection) Resolve(ctx context.Context, r *hawserv1.ResolveRequest) (*hawserv1.ResolveResponse, error) {
	return i.to.Resolve(ctx, callerOf(ctx), r)
}

func (i inspection) Deny(ctx context.Context, r *hawserv1.DenyRequest) (*hawserv1.DenyResponse, error) {
	return i.to.Deny(ctx, callerOf(ctx), r)
}

func (i inspection) Allow(ctx context.Context, r *hawserv1.AllowRequest) (*hawserv1.AllowResponse, error) {
	return i.to.Allow(ctx, callerOf(ctx), r)
}

func (i inspection) ListDenials(r *hawserv1.ListDenialsRequest, s ggrpc.ServerStreamingServer[hawserv1.ListDenialsResponse]) error {
	return i.to.ListDenials(s.Context(), r, warned(i.to, s))
}

func (i inspection) Backup(r *hawserv1.BackupRequest, s ggrpc.ServerStreamingServer[hawserv1.BackupResponse]) error {
	return i.to.Backup(s.Context(), r, s.Send)
}
