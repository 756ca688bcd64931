package grpc

import (
	"context"

	ggrpc "google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/hawser-io/hawser/internal/identity"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// AdminHandler answers the calls of the admin service, which are already authorized. by is the caller, the zero
// Identity without authentication. Methods are called concurrently.
//
// Messages passed to send are not kept. An error of send ends the call and is returned. Errors are
// *transport.Error.
type AdminHandler interface {
	// Warnings are sent with each list, in its header [transportgrpc.WarningHeader].
	Warnings() []string
	ListClusters(ctx context.Context, r *hawserv1.ListClustersRequest, send func(*hawserv1.ListClustersResponse) error) error
	ListWorks(ctx context.Context, r *hawserv1.ListWorksRequest, send func(*hawserv1.ListWorksResponse) error) error
	ListDiscrepancies(ctx context.Context, r *hawserv1.ListDiscrepanciesRequest, send func(*hawserv1.ListDiscrepanciesResponse) error) error
	ListQuotas(ctx context.Context, r *hawserv1.ListQuotasRequest, send func(*hawserv1.ListQuotasResponse) error) error
	ForceDeleteWork(ctx context.Context, by identity.Identity, r *hawserv1.ForceDeleteWorkRequest) (*hawserv1.ForceDeleteWorkResponse, error)
	UnbindCluster(ctx context.Context, by identity.Identity, r *hawserv1.UnbindClusterRequest) (*hawserv1.UnbindClusterResponse, error)
	TransferWork(ctx context.Context, by identity.Identity, r *hawserv1.TransferWorkRequest) (*hawserv1.TransferWorkResponse, error)
	Approve(ctx context.Context, by identity.Identity, r *hawserv1.ApproveRequest) (*hawserv1.ApproveResponse, error)
	ResolveOrphan(ctx context.Context, by identity.Identity, r *hawserv1.ResolveOrphanRequest) (*hawserv1.ResolveOrphanResponse, error)
	Deny(ctx context.Context, by identity.Identity, r *hawserv1.DenyRequest) (*hawserv1.DenyResponse, error)
	Allow(ctx context.Context, by identity.Identity, r *hawserv1.AllowRequest) (*hawserv1.AllowResponse, error)
	ListDenials(ctx context.Context, r *hawserv1.ListDenialsRequest, send func(*hawserv1.ListDenialsResponse) error) error
	Backup(ctx context.Context, r *hawserv1.BackupRequest, send func(*hawserv1.BackupResponse) error) error
}

// callerOf returns the identity of the caller.
func callerOf(ctx context.Context) identity.Identity {
	c, err := connectionOf(ctx)
	if err != nil {
		return identity.Identity{}
	}
	return c.Caller()
}

// warned sets the header with the warnings, and returns the function that sends the list.
func warned[T any](by AdminHandler, s ggrpc.ServerStreamingServer[T]) func(*T) error {
	_ = s.SetHeader(metadata.MD{transportgrpc.WarningHeader: by.Warnings()}) // fails only after the first message
	return s.Send
}

// adminService adapts an AdminHandler to the generated service.
type adminService struct {
	hawserv1.UnimplementedAdminServiceServer
	to AdminHandler
}

func (i adminService) ListClusters(r *hawserv1.ListClustersRequest, s ggrpc.ServerStreamingServer[hawserv1.ListClustersResponse]) error {
	return i.to.ListClusters(s.Context(), r, warned(i.to, s))
}

func (i adminService) ListWorks(r *hawserv1.ListWorksRequest, s ggrpc.ServerStreamingServer[hawserv1.ListWorksResponse]) error {
	return i.to.ListWorks(s.Context(), r, warned(i.to, s))
}

func (i adminService) ListDiscrepancies(r *hawserv1.ListDiscrepanciesRequest, s ggrpc.ServerStreamingServer[hawserv1.ListDiscrepanciesResponse]) error {
	return i.to.ListDiscrepancies(s.Context(), r, warned(i.to, s))
}

func (i adminService) ListQuotas(r *hawserv1.ListQuotasRequest, s ggrpc.ServerStreamingServer[hawserv1.ListQuotasResponse]) error {
	return i.to.ListQuotas(s.Context(), r, warned(i.to, s))
}

func (i adminService) ForceDeleteWork(ctx context.Context, r *hawserv1.ForceDeleteWorkRequest) (*hawserv1.ForceDeleteWorkResponse, error) {
	return i.to.ForceDeleteWork(ctx, callerOf(ctx), r)
}

func (i adminService) UnbindCluster(ctx context.Context, r *hawserv1.UnbindClusterRequest) (*hawserv1.UnbindClusterResponse, error) {
	return i.to.UnbindCluster(ctx, callerOf(ctx), r)
}

func (i adminService) TransferWork(ctx context.Context, r *hawserv1.TransferWorkRequest) (*hawserv1.TransferWorkResponse, error) {
	return i.to.TransferWork(ctx, callerOf(ctx), r)
}

func (i adminService) Approve(ctx context.Context, r *hawserv1.ApproveRequest) (*hawserv1.ApproveResponse, error) {
	return i.to.Approve(ctx, callerOf(ctx), r)
}

func (i adminService) ResolveOrphan(ctx context.Context, r *hawserv1.ResolveOrphanRequest) (*hawserv1.ResolveOrphanResponse, error) {
	return i.to.ResolveOrphan(ctx, callerOf(ctx), r)
}

func (i adminService) Deny(ctx context.Context, r *hawserv1.DenyRequest) (*hawserv1.DenyResponse, error) {
	return i.to.Deny(ctx, callerOf(ctx), r)
}

func (i adminService) Allow(ctx context.Context, r *hawserv1.AllowRequest) (*hawserv1.AllowResponse, error) {
	return i.to.Allow(ctx, callerOf(ctx), r)
}

func (i adminService) ListDenials(r *hawserv1.ListDenialsRequest, s ggrpc.ServerStreamingServer[hawserv1.ListDenialsResponse]) error {
	return i.to.ListDenials(s.Context(), r, warned(i.to, s))
}

func (i adminService) Backup(r *hawserv1.BackupRequest, s ggrpc.ServerStreamingServer[hawserv1.BackupResponse]) error {
	return i.to.Backup(s.Context(), r, s.Send)
}
