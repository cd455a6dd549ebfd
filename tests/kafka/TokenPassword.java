import java.nio.charset.StandardCharsets;
import java.util.Base64;
import javax.crypto.spec.SecretKeySpec;
import org.apache.kafka.security.DelegationTokenManager;

/** The password of a delegation token as Kafka's brokers compute it: SECRET TOKEN_ID. */
public class TokenPassword {
    public static void main(String[] args) {
        byte[] secret = args[0].getBytes(StandardCharsets.UTF_8);
        byte[] hmac = DelegationTokenManager.createHmac(args[1], new SecretKeySpec(secret, "HmacSHA512"));
        System.out.println(Base64.getEncoder().encodeToString(hmac));
    }
}
