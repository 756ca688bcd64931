package grpc_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/grpc"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// TestStatus_RoundTrip: every code is unchanged after the wire, with and without detail, and no two codes share
// a gRPC code.
func TestStatus_RoundTrip(t *testing.T) {
	seen := map[codes.Code]transport.Code{}
	for code := transport.CodeInternal; code <= transport.CodeDeadline; code++ {
		for _, next := range []transport.NextStep{
			transport.NextUnspecified, transport.NextRefreshCredentials, transport.NextResync,
			transport.NextBackOff, transport.NextStop,
		} {
			want := &transport.Error{Code: code, Next: next, Message: "it broke"}
			if next == transport.NextBackOff {
				want.Delay, want.Attribute, want.Hint = 1500*time.Millisecond, "resourceid", "wait"
			}
			st := grpc.Status(want)
			if other, ok := seen[st.Code()]; ok && other != code {
				t.Errorf("%v and %v both map to %v", code, other, st.Code())
			}
			seen[st.Code()] = code
			if diff := cmp.Diff(want, grpc.FromStatus(st.Err())); diff != "" {
				t.Errorf("%v, next step %d (-want +got):\n%s", code, next, diff)
			}
		}
	}
	if strings.HasPrefix(transport.CodeDeadline.String(), "code(") ||
		!strings.HasPrefix((transport.CodeDeadline+1).String(), "code(") {
		t.Error("CodeDeadline is no longer the last code: widen the loop above")
	}
}

func TestStatus_SendsOnlyPeerDetails(t *testing.T) {
	secret := errors.New("open /var/lib/broker/secret")
	for name, tc := range map[string]struct {
		err  error
		code codes.Code
		text string
	}{
		"nil":          {nil, codes.OK, ""},
		"cause":        {&transport.Error{Code: transport.CodeInternal, Message: "store failed", Err: secret}, codes.Internal, "store failed"},
		"wrapped":      {fmt.Errorf("commit: %w", &transport.Error{Code: transport.CodeDenied, Message: "not yours"}), codes.PermissionDenied, "not yours"},
		"untyped":      {secret, codes.Internal, "internal error"},
		"status":       {status.Error(codes.Unimplemented, "no such method"), codes.Unimplemented, "no such method"},
		"canceled":     {context.Canceled, codes.Canceled, "context canceled"},
		"deadline":     {fmt.Errorf("store: %w", context.DeadlineExceeded), codes.DeadlineExceeded, "store: context deadline exceeded"},
		"unknown code": {&transport.Error{Code: 99, Message: "what"}, codes.Internal, "what"},
		"not UTF-8":    {&transport.Error{Code: transport.CodeInvalid, Message: "a\xffb"}, codes.InvalidArgument, "ab"},
		"long for a header": {
			&transport.Error{Code: transport.CodeInvalid, Message: strings.Repeat("x", 5000)},
			codes.InvalidArgument, strings.Repeat("x", 1024),
		},
	} {
		t.Run(name, func(t *testing.T) {
			st := grpc.Status(tc.err)
			if st.Code() != tc.code || st.Message() != tc.text {
				t.Errorf("got %v %q, want %v %q", st.Code(), st.Message(), tc.code, tc.text)
			}
		})
	}
}

func TestStatus_KeepsDetailOfOddText(t *testing.T) {
	e := grpc.FromStatus(grpc.Status(&transport.Error{
		Code: transport.CodeInvalid, Message: "m", Attribute: "ty\xffpe",
		Hint: strings.Repeat("é", 1000), Next: transport.NextStop,
	}).Err())
	if e.Attribute != "type" || len(e.Hint) != 1024 || e.Next != transport.NextStop {
		t.Errorf("got attribute %q, hint of %d bytes, next step %d", e.Attribute, len(e.Hint), e.Next)
	}
}

// TestFromStatus_Foreign: errors of OCM brokers, proxies and the gRPC library.
func TestFromStatus_Foreign(t *testing.T) {
	for name, tc := range map[string]struct {
		err       error
		code      transport.Code
		retryable bool
		message   string
	}{
		"canceled by a proxy":    {status.Error(codes.Canceled, "stream reset"), transport.CodeUnavailable, true, "stream reset"},
		"plain error":            {status.Error(codes.Unknown, "cluster name is required"), transport.CodeInternal, true, "cluster name is required"},
		"no text":                {status.Error(codes.Unknown, ""), transport.CodeInternal, true, "the peer answered Unknown without a reason"},
		"resync failed":          {status.Error(codes.FailedPrecondition, "list failed"), transport.CodeInternal, true, "list failed"},
		"backend, no reason":     {status.Error(codes.FailedPrecondition, "{}"), transport.CodeInternal, true, "the broker's backend failed without a reason"},
		"backend, not JSON":      {status.Error(codes.FailedPrecondition, "{oops"), transport.CodeInternal, true, "{oops"},
		"backend, conflict":      {status.Error(codes.FailedPrecondition, `{"ErrStatus":{"message":"modified","code":409}}`), transport.CodeConflict, true, "modified"},
		"backend, gone":          {status.Error(codes.FailedPrecondition, `{"ErrStatus":{"message":"no w1","code":404}}`), transport.CodeNotFound, false, "no w1"},
		"backend, forbidden":     {status.Error(codes.FailedPrecondition, `{"ErrStatus":{"message":"no","code":403}}`), transport.CodeDenied, false, "no"},
		"backend, invalid":       {status.Error(codes.FailedPrecondition, `{"ErrStatus":{"message":"bad","code":422}}`), transport.CodeInvalid, false, "bad"},
		"backend, failed itself": {status.Error(codes.FailedPrecondition, `{"ErrStatus":{"message":"etcd","code":500}}`), transport.CodeInternal, true, "etcd"},
		"library's size limit": {
			status.Error(codes.ResourceExhausted, "grpc: received message larger than max (9 vs. 4)"),
			transport.CodeTooLarge, false, "grpc: received message larger than max (9 vs. 4)",
		},
		"rate limit":    {status.Error(codes.ResourceExhausted, "slow down"), transport.CodeOverloaded, true, "slow down"},
		"wrong service": {status.Error(codes.Unimplemented, "unknown service"), transport.CodeInvalid, false, "unknown service"},
		"data loss":     {status.Error(codes.DataLoss, "x"), transport.CodeInternal, true, "x"},
		"future code":   {status.Error(codes.Code(77), "x"), transport.CodeInternal, true, "x"},
		"deadline":      {context.DeadlineExceeded, transport.CodeDeadline, true, "context deadline exceeded"},
		"untyped":       {errors.New("boom"), transport.CodeInternal, true, "boom"},
		"typed already": {fmt.Errorf("x: %w", &transport.Error{Code: transport.CodeDenied, Message: "no"}), transport.CodeDenied, false, "no"},
	} {
		t.Run(name, func(t *testing.T) {
			e := grpc.FromStatus(tc.err)
			if e.Code != tc.code || e.Message != tc.message || transport.Retryable(e) != tc.retryable {
				t.Errorf("got %v %q retryable %t, want %v %q retryable %t",
					e.Code, e.Message, transport.Retryable(e), tc.code, tc.message, tc.retryable)
			}
		})
	}
	if e := grpc.FromStatus(nil); e != nil {
		t.Errorf("FromStatus(nil) = %v", e)
	}
}

func TestFromStatus_ChecksDelay(t *testing.T) {
	for name, d := range map[string]*durationpb.Duration{
		"negative": durationpb.New(-time.Second),
		"broken":   {Seconds: 1, Nanos: -5},
		"huge":     {Seconds: 1 << 60},
		"absent":   nil,
	} {
		t.Run(name, func(t *testing.T) {
			st, err := status.New(codes.ResourceExhausted, "x").WithDetails(protoadapt.MessageV1Of(
				&hawserv1.ErrorDetail{NextStep: hawserv1.NextStep_NEXT_STEP_BACK_OFF, Delay: d}))
			if err != nil {
				t.Fatal(err)
			}
			if e := grpc.FromStatus(st.Err()); e.Delay != 0 || e.Next != transport.NextBackOff {
				t.Errorf("got delay %v, next step %d", e.Delay, e.Next)
			}
		})
	}
}

// FuzzFromStatus: any answer of a server becomes an error with a known code and a text.
func FuzzFromStatus(f *testing.F) {
	detail, err := proto.Marshal(&hawserv1.ErrorDetail{NextStep: 3, Delay: durationpb.New(time.Second), Hint: "wait"})
	if err != nil {
		f.Fatal(err)
	}
	const detailType = "type.googleapis.com/hawser.v1.ErrorDetail"
	f.Add(uint32(codes.ResourceExhausted), "busy", detailType, detail)
	f.Add(uint32(codes.ResourceExhausted), "received message larger than max", "", []byte(nil))
	f.Add(uint32(codes.FailedPrecondition), `{"ErrStatus":{"message":"m","code":409}}`, "", []byte(nil))
	f.Add(uint32(codes.FailedPrecondition), `{"ErrStatus":[]}`, detailType, []byte{0xff})
	f.Add(uint32(codes.OK), "", "", []byte(nil))
	f.Fuzz(func(t *testing.T, code uint32, message, typeURL string, value []byte) {
		st := status.FromProto(&spb.Status{
			Code: int32(code), Message: message, Details: []*anypb.Any{{TypeUrl: typeURL, Value: value}},
		})
		e := grpc.FromStatus(st.Err())
		if e == nil {
			if st.Code() != codes.OK {
				t.Fatalf("%v became no error", st)
			}
			return
		}
		if e.Code < transport.CodeInternal || e.Code > transport.CodeDeadline || e.Delay < 0 || e.Error() == "" {
			t.Fatalf("%v became %#v", st, e)
		}
	})
}
