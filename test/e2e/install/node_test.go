package install

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// serve serves the node's part of kubectl logs and kubectl exec to the API server.
func (k *kubelet) serve() (server *httptest.Server, port int32) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		if c := k.named(r.PathValue("pod")); c != nil {
			http.ServeFile(w, r, c.log)
			return
		}
		http.NotFound(w, r)
	})
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		c := k.named(r.PathValue("pod"))
		if c == nil {
			http.NotFound(w, r)
			return
		}
		if err := c.execs(w, r); err != nil {
			k.t.Errorf("exec in %s: %v", c.pod.Name, err)
		}
	})
	server = httptest.NewTLSServer(mux)
	return server, int32(server.Listener.Addr().(*net.TCPAddr).Port)
}

// named returns the container of a pod, nil if there is none.
func (k *kubelet) named(pod string) *container {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.pods {
		if c.pod.Name == pod {
			return c
		}
	}
	return nil
}

// execs runs a program in a container. It sends the output and the exit code over the streams of the request.
func (c *container) execs(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	if _, err := httpstream.Handshake(r, w, []string{"v4.channel.k8s.io"}); err != nil {
		return err
	}
	wanted := map[string]bool{corev1.StreamTypeError: true, corev1.StreamTypeStdout: query.Get("output") != "", corev1.StreamTypeStderr: query.Get("error") != ""}
	came := make(chan httpstream.Stream, len(wanted))
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		came <- s
		return nil
	})
	if conn == nil {
		return errors.New("the connection is not upgraded")
	}
	defer conn.Close()
	streams := map[string]io.Writer{}
	for kind, is := range wanted {
		if !is {
			delete(wanted, kind)
		}
	}
	for len(streams) < len(wanted) {
		select {
		case s := <-came:
			streams[s.Headers().Get(corev1.StreamType)] = s
		case <-conn.CloseChan():
			return errors.New("the connection ended")
		}
	}
	status := `{"metadata":{},"status":"Success"}`
	if err := c.inside(query["command"], streams[corev1.StreamTypeStdout], streams[corev1.StreamTypeStderr]); err != nil {
		var e *exec.ExitError
		if !errors.As(err, &e) {
			return err
		}
		status = fmt.Sprintf(`{"metadata":{},"status":"Failure","reason":"NonZeroExitCode","message":%q,"details":{"causes":[{"reason":"ExitCode","message":"%d"}]}}`, err, e.ExitCode())
	}
	_, err := io.WriteString(streams[corev1.StreamTypeError], status)
	return err
}

// inside runs a program as the user of the container, with the container's files and environment. The program of
// the container is process 1 there.
func (c *container) inside(command []string, stdout, stderr io.Writer) error {
	s, pid := c.pod.Spec.SecurityContext, strconv.Itoa(c.cmd.Process.Pid)
	script := fmt.Sprintf(`mount --bind /proc/%[1]s %[2]s/proc/1 && exec chroot --userspec=%[3]d:%[4]d --groups=%[5]d %[2]s "$@"`, pid, c.root, *s.RunAsUser, *s.RunAsGroup, *s.FSGroup)
	cmd := exec.Command("nsenter", append([]string{"--mount", "--target", pid, "unshare", "--mount", "sh", "-c", script, "sh"}, command...)...)
	cmd.Env, cmd.Stdout, cmd.Stderr = c.cmd.Env, stdout, stderr
	return cmd.Run()
}
