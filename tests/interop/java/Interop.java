import com.google.gson.Gson;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptors;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.MethodDescriptor.MethodType;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.shaded.io.grpc.netty.GrpcSslContexts;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.netty.shaded.io.netty.handler.ssl.SslContextBuilder;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.MetadataUtils;
import io.grpc.stub.StreamObserver;
import java.io.ByteArrayInputStream;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;

/** A client of grpc-java for test.Echo, whose messages are plain bytes; tests/interop/__init__.py describes it. */
public final class Interop {
  private static final int LARGE = 5 << 20;
  private static final int LIMIT_S = 60;

  private interface Check {
    void run(Interop client) throws Exception;
  }

  private static final class Wrong extends Exception {
    private static final long serialVersionUID = 1;

    Wrong(String text) {
      super(text);
    }
  }

  private static final MethodDescriptor.Marshaller<byte[]> RAW =
      new MethodDescriptor.Marshaller<>() {
        @Override
        public InputStream stream(byte[] value) {
          return new ByteArrayInputStream(value);
        }

        @Override
        public byte[] parse(InputStream raw) {
          try {
            return raw.readAllBytes();
          } catch (IOException err) {
            throw new UncheckedIOException(err);
          }
        }
      };

  /** What a call answers: its messages, and then its end. */
  private static final class Answers implements StreamObserver<byte[]> {
    private final LinkedBlockingQueue<Object> queue = new LinkedBlockingQueue<>();
    private static final Object END = new Object();

    @Override
    public void onNext(byte[] message) {
      queue.add(message);
    }

    @Override
    public void onError(Throwable err) {
      queue.add(err);
    }

    @Override
    public void onCompleted() {
      queue.add(END);
    }

    /** Returns the next message, or null at the end. */
    byte[] next() throws Exception {
      Object found = queue.poll(LIMIT_S, TimeUnit.SECONDS);
      if (found == null) {
        throw new Wrong("nothing came");
      }
      if (found instanceof Exception) {
        throw (Exception) found;
      }
      return found == END ? null : (byte[]) found;
    }

    List<byte[]> all() throws Exception {
      List<byte[]> found = new ArrayList<>();
      for (byte[] message = next(); message != null; message = next()) {
        found.add(message);
      }
      return found;
    }
  }

  private final Channel channel;

  private Interop(Channel channel) {
    this.channel = channel;
  }

  private ClientCall<byte[], byte[]> call(String name, MethodType type, CallOptions options) {
    MethodDescriptor<byte[], byte[]> method =
        MethodDescriptor.newBuilder(RAW, RAW)
            .setType(type)
            .setFullMethodName("test.Echo/" + name)
            .build();
    return channel.newCall(method, options);
  }

  private static CallOptions options() {
    return CallOptions.DEFAULT.withDeadlineAfter(LIMIT_S, TimeUnit.SECONDS);
  }

  private byte[] unary(String name, byte[] request) {
    return unary(name, request, options());
  }

  private byte[] unary(String name, byte[] request, CallOptions options) {
    return ClientCalls.blockingUnaryCall(call(name, MethodType.UNARY, options), request);
  }

  private void upload(int... sizes) throws Exception {
    Answers answers = new Answers();
    StreamObserver<byte[]> requests =
        ClientCalls.asyncClientStreamingCall(
            call("Upload", MethodType.CLIENT_STREAMING, options()), answers);
    for (int size : sizes) {
      requests.onNext(new byte[size]);
    }
    requests.onCompleted();
    same(
        new String(answers.next()),
        sizes.length + " messages, " + Arrays.stream(sizes).sum() + " bytes");
  }

  private void download(int count, int size) throws Exception {
    Answers answers = new Answers();
    ClientCalls.asyncServerStreamingCall(
        call("Download", MethodType.SERVER_STREAMING, options()),
        (count + " " + size).getBytes(),
        answers);
    List<byte[]> found = answers.all();
    same(found.size(), count);
    for (int number = 0; number < count; number++) {
      byte[] wanted = new byte[size];
      Arrays.fill(wanted, (byte) number);
      same(Arrays.equals(found.get(number), wanted), true);
    }
  }

  private void both(byte[]... parts) throws Exception {
    Answers answers = new Answers();
    StreamObserver<byte[]> requests =
        ClientCalls.asyncBidiStreamingCall(
            call("Both", MethodType.BIDI_STREAMING, options()), answers);
    for (byte[] part : parts) {
      requests.onNext(part);
      same(Arrays.equals(answers.next(), reversed(part)), true);
    }
    requests.onCompleted();
    same(answers.next(), null);
  }

  /** How many handlers of Wait have begun, and how many were cancelled. */
  private int[] counts() {
    String[] found = new String(unary("Counts", new byte[0])).split(" ");
    return new int[] {Integer.parseInt(found[0]), Integer.parseInt(found[1])};
  }

  private void untilMore(int which, int[] before) throws Exception {
    for (int turn = 0; turn < 100 * LIMIT_S; turn++) {
      if (counts()[which] > before[which]) {
        return;
      }
      Thread.sleep(10);
    }
    throw new Wrong("no more handlers have " + (which == 0 ? "begun" : "been cancelled"));
  }

  private void fails(Status.Code code, Check work) throws Exception {
    try {
      work.run(this);
    } catch (StatusRuntimeException err) {
      if (err.getStatus().getCode() != code) {
        throw err;
      }
      return;
    }
    throw new Wrong("no error; wanted " + code);
  }

  private static void same(Object found, Object wanted) throws Wrong {
    if (found == null ? wanted != null : !found.equals(wanted)) {
      throw new Wrong(found + " instead of " + wanted);
    }
  }

  private static byte[] reversed(byte[] raw) {
    byte[] out = new byte[raw.length];
    for (int i = 0; i < raw.length; i++) {
      out[raw.length - 1 - i] = raw[i];
    }
    return out;
  }

  private static byte[] noise(int size) {
    byte[] out = new byte[size];
    new Random(1).nextBytes(out);
    return out;
  }

  private static Map<String, Check> checks() {
    Map<String, Check> checks = new LinkedHashMap<>();
    checks.put(
        "unary",
        c -> {
          for (int size : new int[] {0, 3, 16380, 65536, LARGE}) {
            byte[] request = noise(size);
            same(Arrays.equals(c.unary("Unary", request), request), true);
          }
        });
    checks.put(
        "upload",
        c -> {
          c.upload(1, 0, 2);
          c.upload(LARGE, LARGE, LARGE);
        });
    checks.put(
        "download",
        c -> {
          c.download(0, 0);
          c.download(1000, 100);
          c.download(3, LARGE);
        });
    checks.put("both", c -> c.both("abc".getBytes(), new byte[0], noise(LARGE)));
    checks.put(
        "compressed",
        c ->
            same(
                c.unary("Unary", new byte[100_000], options().withCompression("gzip")).length,
                100_000));
    checks.put("metadata", Interop::metadata);
    checks.put(
        "deadline",
        c -> {
          int[] before = c.counts();
          CallOptions soon = CallOptions.DEFAULT.withDeadlineAfter(1, TimeUnit.SECONDS);
          c.fails(Status.Code.DEADLINE_EXCEEDED, o -> o.unary("Wait", new byte[0], soon));
          c.untilMore(1, before);
        });
    checks.put(
        "cancel",
        c -> {
          int[] before = c.counts();
          Future<byte[]> waiting =
              ClientCalls.futureUnaryCall(
                  c.call("Wait", MethodType.UNARY, options()), new byte[0]);
          c.untilMore(0, before);
          same(waiting.cancel(true), true);
          c.untilMore(1, before);
        });
    checks.put(
        "error",
        c -> {
          try {
            c.unary("Fail", "NOT_FOUND".getBytes());
            throw new Wrong("no error");
          } catch (StatusRuntimeException err) {
            same(err.getStatus().getCode(), Status.Code.NOT_FOUND);
            same(err.getStatus().getDescription(), "why: 100 % of \u00fc");
          }
        });
    checks.put(
        "missing",
        c -> c.fails(Status.Code.UNIMPLEMENTED, o -> o.unary("Missing", new byte[0])));
    checks.put(
        "too-large",
        c ->
            c.fails(
                Status.Code.RESOURCE_EXHAUSTED, o -> o.unary("Unary", new byte[(8 << 20) + 1])));
    checks.put(
        "early",
        c -> {
          Answers answers = new Answers();
          StreamObserver<byte[]> requests =
              ClientCalls.asyncClientStreamingCall(
                  c.call("Early", MethodType.CLIENT_STREAMING, options()), answers);
          for (int i = 0; i < 100; i++) {
            requests.onNext(new byte[100_000]);
          }
          same(new String(answers.next()), "early");
        });
    checks.put(
        "many",
        c -> {
          List<Future<byte[]>> calls = new ArrayList<>();
          for (int i = 0; i < 1000; i++) {
            calls.add(
                ClientCalls.futureUnaryCall(
                    c.call("Unary", MethodType.UNARY, options()), String.valueOf(i).getBytes()));
          }
          for (int i = 0; i < 1000; i++) {
            same(new String(calls.get(i).get()), String.valueOf(i));
          }
        });
    return checks;
  }

  private void metadata() throws Exception {
    Metadata.Key<String> sent = Metadata.Key.of("x-sent", Metadata.ASCII_STRING_MARSHALLER);
    Metadata.Key<String> seen = Metadata.Key.of("seen", Metadata.ASCII_STRING_MARSHALLER);
    Metadata.Key<String> greeting = Metadata.Key.of("greeting", Metadata.ASCII_STRING_MARSHALLER);
    Metadata more = new Metadata();
    more.put(sent, "Bearer a, b");
    AtomicReference<Metadata> head = new AtomicReference<>();
    AtomicReference<Metadata> trailers = new AtomicReference<>();
    Channel wrapped =
        ClientInterceptors.intercept(
            channel,
            MetadataUtils.newAttachHeadersInterceptor(more),
            MetadataUtils.newCaptureMetadataInterceptor(head, trailers));
    new Interop(wrapped).both("abc".getBytes());
    same(head.get().get(greeting), "hello");
    same(head.get().get(seen), "Bearer a, b");
  }

  /** Call without a pause while the server leaves, and another takes its place. */
  private void drain() throws Exception {
    String first = new String(unary("Name", new byte[0]));
    Future<byte[]> waiting =
        ClientCalls.futureUnaryCall(call("Wait", MethodType.UNARY, options()), new byte[0]);
    untilMore(0, new int[] {0, 0});
    say(Map.of("event", "waiting"));
    boolean hasMoved = false;
    while (!waiting.isDone()) {
      String name = new String(unary("Name", new byte[0]));
      if (!hasMoved && !name.equals(first)) {
        hasMoved = true;
        say(Map.of("event", "moved"));
      }
    }
    same(new String(waiting.get()), "waited");
    same(hasMoved, true);
  }

  private static synchronized void say(Map<String, String> line) {
    System.out.println(new Gson().toJson(line));
  }

  private static void report(String name, Check check, Interop client) {
    String problem = "";
    try {
      check.run(client);
    } catch (Exception err) {
      problem = err.toString();
    }
    say(Map.of("check", name, "problem", problem));
  }

  private static ManagedChannel open(Map<String, String> given) throws Exception {
    NettyChannelBuilder builder =
        NettyChannelBuilder.forTarget(given.get("-address")).maxInboundMessageSize(64 << 20);
    if (!given.containsKey("-ca")) {
      return builder.usePlaintext().build();
    }
    SslContextBuilder tls = GrpcSslContexts.forClient().trustManager(new File(given.get("-ca")));
    if (given.containsKey("-cert")) {
      tls.keyManager(new File(given.get("-cert")), new File(given.get("-key")));
    }
    return builder.sslContext(tls.build()).build();
  }

  public static void main(String[] arguments) throws Exception {
    Map<String, String> given = new LinkedHashMap<>();
    for (int i = 0; i + 1 < arguments.length; i += 2) {
      given.put(arguments[i], arguments[i + 1]);
    }
    ManagedChannel channel = open(given);
    Interop client = new Interop(channel);
    if (arguments[arguments.length - 1].equals("drain")) {
      report("drain", Interop::drain, client);
    } else {
      checks().forEach((name, check) -> report(name, check, client));
    }
    channel.shutdownNow().awaitTermination(5, TimeUnit.SECONDS);
  }
}
