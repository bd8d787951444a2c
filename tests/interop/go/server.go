package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const reusePort = 15 // SO_REUSEPORT of Linux, which package syscall lacks

var (
	gate             = make(chan struct{})
	begun, cancelled atomic.Int64
)

// one wraps a handler with one request and one response.
func one(run func(ctx context.Context, request []byte) ([]byte, error)) grpc.StreamHandler {
	return func(_ any, call grpc.ServerStream) error {
		var request []byte
		if err := call.RecvMsg(&request); err != nil {
			return err
		}
		answer, err := run(call.Context(), request)
		if err != nil {
			return err
		}
		return call.SendMsg(&answer)
	}
}

func upload(_ any, call grpc.ServerStream) error {
	count, total := 0, 0
	for {
		var part []byte
		if err := call.RecvMsg(&part); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		count, total = count+1, total+len(part)
	}
	answer := fmt.Appendf(nil, "%d messages, %d bytes", count, total)
	return call.SendMsg(&answer)
}

func download(_ any, call grpc.ServerStream) error {
	var request []byte
	var count, size int
	if err := call.RecvMsg(&request); err != nil {
		return err
	}
	if _, err := fmt.Sscan(string(request), &count, &size); err != nil {
		return err
	}
	for number := range count {
		part := []byte(strings.Repeat(string([]byte{byte(number)}), size))
		if err := call.SendMsg(&part); err != nil {
			return err
		}
	}
	return nil
}

func both(_ any, call grpc.ServerStream) error {
	sent, _ := metadata.FromIncomingContext(call.Context())
	greeting := metadata.Pairs("greeting", "hello")
	greeting.Append("seen", sent.Get("x-sent")...)
	if err := call.SendHeader(greeting); err != nil {
		return err
	}
	for {
		var part []byte
		if err := call.RecvMsg(&part); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		answer := reversed(part)
		if err := call.SendMsg(&answer); err != nil {
			return err
		}
	}
}

func wait(ctx context.Context, _ []byte) ([]byte, error) {
	begun.Add(1)
	select {
	case <-gate:
		return []byte("waited"), nil
	case <-ctx.Done():
		cancelled.Add(1)
		return nil, ctx.Err()
	}
}

func fail(_ context.Context, request []byte) ([]byte, error) {
	var found codes.Code
	if err := found.UnmarshalJSON(fmt.Appendf(nil, "%q", request)); err != nil {
		return nil, err
	}
	return nil, status.Error(found, "why: 100 % of ü")
}

func handlers() map[string]grpc.StreamHandler {
	return map[string]grpc.StreamHandler{
		"Unary":    one(func(_ context.Context, request []byte) ([]byte, error) { return request, nil }),
		"Upload":   upload,
		"Download": download,
		"Both":     both,
		"Wait":     one(wait),
		"Fail":     one(fail),
		"Early":    one(func(context.Context, []byte) ([]byte, error) { return []byte("early"), nil }),
		"Counts": one(func(context.Context, []byte) ([]byte, error) {
			return fmt.Appendf(nil, "%d %d", begun.Load(), cancelled.Load()), nil
		}),
		"Name": one(func(context.Context, []byte) ([]byte, error) { return fmt.Append(nil, os.Getpid()), nil }),
	}
}

func serve() {
	config := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
		return conn.Control(func(fd uintptr) {
			syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, reusePort, 1)
		})
	}}
	listener, err := config.Listen(context.Background(), "tcp", *address)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(
		grpc.ForceServerCodec(rawCodec{}), grpc.MaxRecvMsgSize(8<<20), grpc.Creds(transport(true)))
	description := grpc.ServiceDesc{ServiceName: "test.Echo", HandlerType: (*any)(nil)}
	for name, handler := range handlers() {
		description.Streams = append(description.Streams, grpc.StreamDesc{
			StreamName: name, Handler: handler, ClientStreams: true, ServerStreams: true})
	}
	server.RegisterService(&description, nil)
	go func() {
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGTERM)
		<-stop
		server.GracefulStop()
	}()
	go func() {
		bufio.NewReader(os.Stdin).ReadString('\n')
		close(gate)
	}()
	say(map[string]any{"port": listener.Addr().(*net.TCPAddr).Port})
	if err := server.Serve(listener); err != nil {
		log.Fatal(err)
	}
}
